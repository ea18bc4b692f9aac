// A launch a row, on the tensor cores: see rnn_products.cuh. All channels of a head read what all
// of them gave before, which is in y from the second row on.
//
// Every launch adds in one order, whatever the sequences: the matrix is cut along h into kRanges
// ranges, each walked in slabs; the ranges are added from the first to the last. The kernel of one
// launch for all rows (sm90/rnn/rnn_in_cluster.cuh) does the same: they have to agree to the bit.
#include <algorithm>

#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/rnn/rnn.cuh"
#include "kernels/cuda/sm80/rnn/rnn.h"
#include "kernels/cuda/sm80/rnn/rnn_products.cuh"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kRanges = kRnnRanges;  // of h; and warps of a block
constexpr int kThreads = kRanges * kWarpSize;
constexpr int kChannels = kTileN / kMostGates;  // of one mma: all gates of each
constexpr int kAhead = 3;                       // slabs of R that a lane has on their way

// The block's part of the head: kM kChannels channels.
struct BlockCoord {
  int head, d0, first;  // first: sequence
};

// Where a lane reads its weights: row (gate, channel) of the mma's outputs.
template <int kM>
struct Gates {
  const uint16_t* from[2 * kM];  // null: no such gate or channel
  int DH;

  __device__ Gates(const RnnArgs& a, const BlockCoord& at) : DH(a.DH) {
    const int gates = gates_at(a);
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

// A block's memory: the sums of the kSequences that it ends in one turn. With one buffer it has one
// turn; with two some threads make the sums of the next turn while others end these. Behind it come
// a pointer to h and the row of each of its sequences.
template <int kM, int kR, int kBuffers>
struct Memory {
  static constexpr int kSequences = kR * kTileRows;
  float sums[kBuffers][kRanges][kSequences][kM * kTileN + 1];

  static constexpr size_t bytes(int sequences) {
    return sizeof(Memory) + static_cast<size_t>(sequences) * (sizeof(float*) + sizeof(int64_t));
  }
};

// Row t of the sequences that have it. Blocks: groups of `turns` times kSequences sequences x heads
// x pieces of kM kChannels channels. Where kAhead slabs of R are all of them, they come before the
// kernel ahead has ended, and once for all sequences.
template <int kM, int kR, int kBuffers>
__global__ void __launch_bounds__(kThreads, kM == 1 ? 2 : 1)
    tile_kernel(RnnArgs a, int t, int pieces, int turns_of_block) {
  using Memory = Memory<kM, kR, kBuffers>;
  constexpr int kSequences = Memory::kSequences, kItems = kSequences * kM * kChannels;
  static_assert(kItems <= kThreads);
  const int turns = kBuffers == 1 ? 1 : turns_of_block;
  extern __shared__ float4 shared[];
  auto& sums = reinterpret_cast<Memory*>(shared)->sums;
  auto* const before = reinterpret_cast<const float**>(reinterpret_cast<Memory*>(shared) + 1);
  auto* const row_of = reinterpret_cast<int64_t*>(before + turns * kSequences);
  let_next_start();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarpSize;
  const int lane = thread % kWarpSize;
  const BlockCoord at{static_cast<int>(blockIdx.x) / pieces % a.H,
                      static_cast<int>(blockIdx.x) % pieces * kM * kChannels,
                      static_cast<int>(blockIdx.x) / pieces / a.H * turns * kSequences};
  const int range = ((a.DH + kSlab - 1) / kSlab + kRanges - 1) / kRanges * kSlab;
  const int begin = warp * range, end = min(begin + range, a.DH);
  const Gates<kM> R(a, at);
  uint4 w[kAhead][2 * kM];
  const auto load_R = [&](int k) {
#pragma unroll
    for (int s = 0; s < kAhead; ++s) R.load(w[s], k + s * kSlab, end);
  };
  load_R(begin);
  // Where rows are, no kernel writes. before: h, or null where the sequence has no such row.
  bool any = false;
  for (int b = thread; b < turns * kSequences; b += kThreads) {
    before[b] = nullptr;
    const int sequence = at.first + b;
    if (sequence >= a.seqs.num_seqs) continue;
    const int64_t row = static_cast<int64_t>(a.seqs.begin[sequence]) + t;
    if (row >= a.seqs.begin[sequence + 1]) continue;
    row_of[b] = row;
    const int64_t from = t == 0 ? a.seqs.slot[sequence] : row - 1;
    before[b] = (t == 0 ? a.h : a.y) + (from * a.H + at.head) * a.DH;
    any = true;
  }
  any = __syncthreads_or(any);
  wait_for_previous();
  if (!any) return;

  float4 next_h[kAhead][2];  // on its way while others are multiplied
  const auto load_next = [&](int row_tile, int k) {
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      load_h(next_h[s], before[row_tile * kTileRows + lane / 4], k + s * kSlab + 8 * (lane % 4),
             end);
    }
  };
  load_next(0, begin);
  const int gates = gates_at(a);
  const int c = thread % (kM * kChannels), d = at.d0 + c;
  for (int turn = 0; turn < turns; ++turn) {
    const int b = turn * kSequences + thread / (kM * kChannels);
    const bool ends = thread < kItems && d < a.DH && before[b] != nullptr;
    Channel channel;  // on its way meanwhile
    if (ends) {
      const int slot = a.seqs.slot[at.first + b];
      channel = channel_of(a, row_of[b], slot, at.head, d, gates, before[b][d]);
    }
    auto& partial = sums[kBuffers == 1 ? 0 : turn % 2];
#pragma unroll
    for (int r = 0; r < kR; ++r) {
      const int row_tile = turn * kR + r;
      RnnAccumulator<kM> sum;
      for (int k = begin; k < end; k += kAhead * kSlab) {
        if (range > kAhead * kSlab && (row_tile > 0 || k > begin)) load_R(k);
        float4 h[kAhead][2];
#pragma unroll
        for (int s = 0; s < kAhead; ++s) {
          h[s][0] = next_h[s][0];
          h[s][1] = next_h[s][1];
        }
        const int after = k + kAhead * kSlab;
        if (after < end) {
          load_next(row_tile, after);
        } else if (row_tile + 1 < turns * kR) {
          load_next(row_tile + 1, begin);
        }
#pragma unroll
        for (int s = 0; s < kAhead; ++s) {
          if (k + s * kSlab < end) sum.add(w[s], split_rnn(h[s][0], h[s][1]));
        }
      }
      sum.for_each(
          [&](int n, int row, float value) { partial[warp][r * kTileRows + row][n] = value; });
    }
    __syncthreads();

    if (!ends) continue;
    float s[kMostGates];
#pragma unroll
    for (int gate = 0; gate < kMostGates; ++gate) {
      if (gate >= gates) break;
      const int n = c / kChannels * kTileN + gate * kChannels + c % kChannels;
      const int row = thread / (kM * kChannels);
      s[gate] = partial[0][row][n];
#pragma unroll
      for (int part = 1; part < kRanges; ++part) s[gate] += partial[part][row][n];
      s[gate] += channel.bias[gate];
    }
    a.y[channel.y] = sm80::next_h(a, channel.x, s, channel.h, channel.rest);
    put_channel(a, channel.state, channel.rest);
  }
}

template <int kM, int kR, int kBuffers>
void launch_rows(const RnnArgs& args, Stream& stream) {
  using Memory = Memory<kM, kR, kBuffers>;
  constexpr int kMostTurns = kBuffers == 1 ? 1 : 128;
  constexpr int kMostBytes = 96 << 10;  // that a block may have on any GPU
  static_assert(Memory::bytes(kMostTurns * Memory::kSequences) <= kMostBytes);
  const int parts = ceil_div(args.DH, kM * kChannels) * args.H;
  // There are as many blocks as run at once, as each reads its part of the matrix.
  const int multiprocessors = static_cast<CudaStream&>(stream).multiprocessors();
  const int units = ceil_div(args.seqs.num_seqs, Memory::kSequences);
  const int turns = std::min(ceil_div(units, std::max(1, multiprocessors / parts)), kMostTurns);
  abort_if_failed(cudaFuncSetAttribute(tile_kernel<kM, kR, kBuffers>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, kMostBytes),
                  "rnn, shared memory");
  for (int t = 0; t < args.seqs.max_len; ++t) {
    launch_early(stream, "rnn, row", tile_kernel<kM, kR, kBuffers>,
                 {.grid = static_cast<unsigned>(ceil_div(units, turns) * parts),
                  .threads = kThreads,
                  .shared = Memory::bytes(turns * Memory::kSequences)},
                 args, t, parts / args.H, turns);
  }
}

}  // namespace

void rnn_by_tiles(const RnnArgs& args, Stream& stream) {
  if (args.seqs.num_seqs <= 8) {
    launch_rows<1, 1, 1>(args, stream);
  } else if (args.seqs.num_seqs <= 16) {
    launch_rows<1, 2, 1>(args, stream);
  } else {
    launch_rows<3, 2, 2>(args, stream);
  }
  rnn_keep_last_rows(args, stream);
}

}  // namespace recurve::cuda::sm80
