// A launch a row, on the tensor cores, by exact products: see split_bf16.cuh. All channels of a
// head read the outputs of all of them before, which are in y from the second row on.
//
// Every launch adds in one order, whatever the sequences: the matrix is cut along h into kRanges
// ranges, each walked in slabs; the ranges are added from the first to the last.
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/rnn.cuh"
#include "kernels/cuda/sm80/rnn.h"
#include "kernels/cuda/sm80/split_bf16.cuh"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kRanges = 8;  // of h; and warps of a block
constexpr int kThreads = kRanges * kWarpSize;
constexpr int kChannels = kTileN / kMostGates;  // of one mma: all gates of each

// The block's part of the head: kM kChannels channels.
struct Place {
  int head, d0, first;  // first: sequence
};

// Where a lane reads its weights: row (gate, channel) of the mma's outputs.
template <int kM>
struct Gates {
  const uint16_t* from[2 * kM];  // null: no such gate or channel
  int DH;

  __device__ Gates(const RnnArgs& a, const Place& at) : DH(a.DH) {
    const int gates = static_cast<int>(a.R.N / (static_cast<int64_t>(a.H) * a.DH));
    const int group = threadIdx.x % kWarpSize / 4, quad = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < 2 * kM; ++j) {
      const int output = j % 2 * 8 + group, gate = output / kChannels;
      const int d = at.d0 + j / 2 * kChannels + output % kChannels;
      const int64_t row = (static_cast<int64_t>(at.head) * gates + gate) * a.DH + d;
      const bool there = gate < gates && d < a.DH;
      from[j] = there ? static_cast<const uint16_t*>(a.R.data) + row * a.DH + 8 * quad : nullptr;
    }
  }
  // The slab at k; zeros from `end` on.
  __device__ void load(uint4 (&w)[2 * kM], int k, int end) const {
    const bool there = k + 8 * static_cast<int>(threadIdx.x % 4) < end;
#pragma unroll
    for (int j = 0; j < 2 * kM; ++j) {
      w[j] = there && from[j] != nullptr ? load_weights(from[j] + k) : make_uint4(0, 0, 0, 0);
    }
  }
};

// Eight values of h from k on; zeros from `end` on and where there is no sequence.
__device__ void load_h(float4 (&h)[2], const float* before, int k, int end) {
  const bool there = before != nullptr && k < end;
  const auto* from = reinterpret_cast<const float4*>(before + k);
  h[0] = there ? from[0] : make_float4(0, 0, 0, 0);
  h[1] = there ? from[1] : make_float4(0, 0, 0, 0);
}

// What a thread brings to the end of a row: one channel of one sequence.
struct Channel {
  int64_t y, state;  // where they are
  float x[kMostGates], bias[kMostGates];
  float h;
  RnnChannel rest;
};
__device__ Channel channel_of(const RnnArgs& a, int64_t row, int slot, int head, int d, int gates,
                              float h) {
  Channel c;
  c.y = (row * a.H + head) * a.DH + d;
  c.state = (static_cast<int64_t>(slot) * a.H + head) * a.DH + d;
#pragma unroll
  for (int gate = 0; gate < kMostGates; ++gate) {
    if (gate >= gates) break;
    const int64_t channel = (static_cast<int64_t>(gate) * a.H + head) * a.DH + d;
    c.x[gate] = a.x[row * a.x_stride + channel];
    c.bias[gate] = a.b == nullptr ? 0 : a.b[channel];
  }
  c.h = h;
  c.rest = channel_at(a, c.state);
  return c;
}

// Row t of the sequences that have it. Blocks: groups of 8 kR sequences x heads x pieces of
// kM kChannels channels. A lane has kAhead slabs of R on their way; where those are all, they come
// before the kernel ahead has ended, and once for all sequences.
template <int kM, int kR, int kAhead>
__global__ void __launch_bounds__(kThreads, 2) tile_kernel(RnnArgs a, int t, int pieces) {
  constexpr int kSequences = kR * kTileRows, kItems = kSequences * kM * kChannels;
  static_assert(kItems <= kThreads);
  __shared__ float partial[kRanges][kSequences][kM * kTileN + 1];
  __shared__ const float* before[kSequences];  // h; null: the sequence has no such row
  __shared__ int64_t row_of[kSequences];
  let_next_start();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarpSize;
  const int lane = thread % kWarpSize;
  const Place at{static_cast<int>(blockIdx.x) / pieces % a.H,
                 static_cast<int>(blockIdx.x) % pieces * kM * kChannels,
                 static_cast<int>(blockIdx.x) / pieces / a.H * kSequences};
  const int range = ((a.DH + kSlab - 1) / kSlab + kRanges - 1) / kRanges * kSlab;
  const int begin = warp * range, end = min(begin + range, a.DH);
  const Gates<kM> R(a, at);
  uint4 w[kAhead][2 * kM];
  const auto load_R = [&](int k) {
#pragma unroll
    for (int s = 0; s < kAhead; ++s) R.load(w[s], k + s * kSlab, end);
  };
  load_R(begin);

  wait_for_previous();
  if (thread < kSequences) {
    const int b = at.first + thread;
    const float* from = nullptr;
    if (b < a.seqs.num_seqs && a.seqs.begin[b] + t < a.seqs.begin[b + 1]) {
      row_of[thread] = static_cast<int64_t>(a.seqs.begin[b]) + t;
      const int64_t row = t == 0 ? a.seqs.slot[b] : row_of[thread] - 1;
      from = (t == 0 ? a.h : a.y) + (row * a.H + at.head) * a.DH;
    }
    before[thread] = from;
  }
  const bool any = __syncthreads_or(thread < kSequences && before[thread] != nullptr);
  if (!any) return;

  const int gates = static_cast<int>(a.R.N / (static_cast<int64_t>(a.H) * a.DH));
  const int b = thread / (kM * kChannels), c = thread % (kM * kChannels), d = at.d0 + c;
  const bool ends = thread < kItems && before[b] != nullptr && d < a.DH;
  Channel channel;  // on its way meanwhile
  if (ends) {
    channel = channel_of(a, row_of[b], a.seqs.slot[at.first + b], at.head, d, gates, before[b][d]);
  }

#pragma unroll
  for (int r = 0; r < kR; ++r) {
    Accumulator<kM, 1> sum;
    for (int k = begin; k < end; k += kAhead * kSlab) {
      if (r > 0 || k > begin) {
        if (range > kAhead * kSlab) load_R(k);
      }
      float4 h[kAhead][2];
#pragma unroll
      for (int s = 0; s < kAhead; ++s) {
        load_h(h[s], before[r * kTileRows + lane / 4], k + s * kSlab + 8 * (lane % 4), end);
      }
#pragma unroll
      for (int s = 0; s < kAhead; ++s) {
        if (k + s * kSlab < end) sum.add(w[s], 0, split(h[s][0], h[s][1]));
      }
    }
    sum.for_each(
        [&](int n, int row, float value) { partial[warp][r * kTileRows + row][n] = value; });
  }
  __syncthreads();

  if (!ends) return;
  float s[kMostGates];
#pragma unroll
  for (int gate = 0; gate < kMostGates; ++gate) {
    if (gate >= gates) break;
    const int n = c / kChannels * kTileN + gate * kChannels + c % kChannels;
    s[gate] = partial[0][b][n];
#pragma unroll
    for (int part = 1; part < kRanges; ++part) s[gate] += partial[part][b][n];
    s[gate] += channel.bias[gate];
  }
  a.y[channel.y] = next_h(a, channel.x, s, channel.h, channel.rest);
  put_channel(a, channel.state, channel.rest);
}

template <int kM, int kR, int kAhead>
void launch_rows(const RnnArgs& args, Stream& stream) {
  const int pieces = (args.DH + kM * kChannels - 1) / (kM * kChannels);
  const int groups = (args.seqs.num_seqs + kR * kTileRows - 1) / (kR * kTileRows);
  for (int t = 0; t < args.seqs.max_len; ++t) {
    launch_early(stream, "rnn, row", tile_kernel<kM, kR, kAhead>,
                 {.grid = static_cast<unsigned>(groups * args.H * pieces), .threads = kThreads},
                 args, t, pieces);
  }
}

}  // namespace

void rnn_by_tiles(const RnnArgs& args, Stream& stream) {
  if (args.seqs.num_seqs <= 8) {
    launch_rows<1, 1, 3>(args, stream);
  } else if (args.seqs.num_seqs <= 16) {
    launch_rows<1, 2, 3>(args, stream);
  } else {
    launch_rows<2, 4, 3>(args, stream);
  }
  rnn_keep_last_rows(args, stream);
}

}  // namespace recurve::cuda::sm80
