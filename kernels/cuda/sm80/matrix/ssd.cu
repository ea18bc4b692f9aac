// The step form, row after row with the state in registers.

#include "kernels/check.h"
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/capabilities.h"
#include "kernels/cuda/sm80/matrix/chunks.cuh"
#include "kernels/cuda/sm80/matrix/ssd.cuh"
#include "kernels/cuda/sm80/matrix/ssd_chunk.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/rows/activate.cuh"
#include "kernels/cuda/sm80/vector.cuh"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 4 * kWarpSize;
constexpr int kSlab = 4 * kWarpSize;     // states of a channel that a warp holds, four a lane
constexpr unsigned kFirstBlocks = 1024;  // about as many as run at once
constexpr unsigned kAll = 0xffffffffu;   // lanes

// Channels of a head that a warp holds: as many as are 4 KB of states. Adjacent lanes
// bring what a channel has in addition to its states.
template <typename T>
struct Shape {
  static constexpr int kChannels = 32 / sizeof(T);
  static constexpr int kLanes = kWarpSize / kChannels;  // of a channel
  // Blocks that a multiprocessor has at least; 0: as many as come. With the channels of bf16 four
  // would come.
  static constexpr int kBlocks = sizeof(T) < sizeof(float) ? 5 : 0;
};

// What a lane needs of a row: its states' B and C, x and gate of one of the warp's channels.
struct Row {
  float x, z;
  float4 B, C;
};

// Time step and decay of a row.
struct Step {
  float dt, decay;
};

__device__ Step step_at(const SsdArgs& a, int64_t row, int head) {
  const SsdStep step = ssd_step_at(a, row, head);
  return {step.dt, expf(step.log_decay)};
}

// One head of one sequence, for a lane: p0 is the warp's first channel, n the lane's first state.
// kWhole: the warp has all its channels, N is kSlab, and rows of B and C begin at multiples of 16
// bytes.
template <typename T, bool kWhole>
struct Lane {
  const SsdArgs& a;
  int head, p0, n, channels;

  __device__ int states(int channel, int base) const {
    if constexpr (kWhole) return 4;
    return channel < channels ? a.N - base - n : 0;
  }
  __device__ Row row_at(int64_t row, int base) const {
    const int lane = threadIdx.x % kWarpSize;
    const int64_t inputs = row * a.xBC_stride;
    const int64_t BC = inputs + static_cast<int64_t>(head / (a.H / a.G)) * a.N + base + n;
    const int64_t p = int64_t{head} * a.P + p0 + min(lane / Shape<T>::kLanes, channels - 1);
    const float x = a.x[inputs + p], z = a.z == nullptr ? 0 : a.z[row * a.z_stride + p];
    if constexpr (kWhole) {
      return {x, z, *reinterpret_cast<const float4*>(a.B + BC),
              *reinterpret_cast<const float4*>(a.C + BC)};
    }
    return {x, z, load4<false>(a.B + BC, states(0, base)), load4<false>(a.C + BC, states(0, base))};
  }
};

__device__ void advance(float& h, float& y, float decay, float dtx, float B, float C) {
  h = __fmaf_rn(decay, h, __fmul_rn(dtx, B));
  y = __fmaf_rn(C, h, y);
}
__device__ void advance(float4& h, float& y, float decay, float dtx, const Row& in) {
  advance(h.x, y, decay, dtx, in.B.x, in.C.x);
  advance(h.y, y, decay, dtx, in.B.y, in.C.y);
  advance(h.z, y, decay, dtx, in.B.z, in.C.z);
  advance(h.w, y, decay, dtx, in.B.w, in.C.w);
}

// The sum over the lanes of each channel's value, known to the lanes of that channel.
template <int kChannels>
__device__ float sums_of_channels(float (&y)[kChannels]) {
  const int lane = threadIdx.x % kWarpSize;
  int lanes = kWarpSize / 2;
#pragma unroll
  for (int kept = kChannels / 2; kept > 0; kept /= 2, lanes /= 2) {
    const bool upper = (lane & lanes) != 0;
#pragma unroll
    for (int c = 0; c < kept; ++c) {
      const float sent = upper ? y[c] : y[c + kept];
      y[c] = (upper ? y[c + kept] : y[c]) + __shfl_xor_sync(kAll, sent, lanes);
    }
  }
  for (; lanes > 0; lanes /= 2) y[0] += __shfl_xor_sync(kAll, y[0], lanes);
  return y[0];
}

// What is left of y, of which kLanes lanes have a value each. P is a multiple of kSquares. By a
// warp.
template <int kLanes>
__device__ void defer_norm(const DeferredRmsNorm& next, int64_t at, float y, float norm,
                           bool there) {
  static_assert(kWarpSize / kLanes % DeferredRmsNorm::kSquares == 0);
  const int lane = threadIdx.x % kWarpSize;
  const int first = lane / kLanes / DeferredRmsNorm::kSquares * DeferredRmsNorm::kSquares;
  float v[DeferredRmsNorm::kSquares];
#pragma unroll
  for (int i = 0; i < DeferredRmsNorm::kSquares; ++i)
    v[i] = __shfl_sync(kAll, y, (first + i) * kLanes);
  if (!there || lane % kLanes != 0) return;
  next.x[at] = kept_as<uint16_t>(__fmul_rn(y, norm));
  if (at % DeferredRmsNorm::kSquares != 0) return;
  next.squares[at / DeferredRmsNorm::kSquares] = squares_of(make_float4(v[0], v[1], v[2], v[3])) +
                                                 squares_of(make_float4(v[4], v[5], v[6], v[7]));
}

// A warp: some channels of one head of one sequence. The state is on its way while the time
// step is computed, and is read and written once where N <= kSlab, else once a row.
// kVector: N is a multiple of 4. kOutgrown: of states that outgrow the cache, with kWhole. T: what
// the state is kept as.
template <typename T, bool kWhole, bool kVector, bool kOutgrown>
__global__ void __launch_bounds__(kThreads, kWhole ? Shape<T>::kBlocks : 0)
    ssd_kernel(SsdArgs a, int tiles) {
  constexpr int kChannels = Shape<T>::kChannels, kLanes = Shape<T>::kLanes;
  let_next_start();
  const int tile = blockIdx.x % tiles, head = blockIdx.x / tiles % a.H;
  const int sequence = blockIdx.x / tiles / a.H, lane = threadIdx.x % kWarpSize;
  const int p0 = (tile * kThreads + static_cast<int>(threadIdx.x)) / kWarpSize * kChannels;
  if (p0 >= a.P) return;
  const Lane<T, kWhole> s{a, head, p0, 4 * lane, min(kChannels, a.P - p0)};
  const StepRows rows = step_rows(a.seqs, a.chunk, sequence);
  const int64_t begin = rows.first, end = rows.end;
  T* state = values_of<T>(a.h) +
             ((static_cast<int64_t>(a.seqs.slot[sequence]) * a.H + head) * a.P + p0) * a.N + s.n;
  if (blockIdx.x < kFirstBlocks) {  // the others find the kernel before this one gone
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      if (4 * lane % (kLineBytes / sizeof(T)) == 0 && s.states(c, 0) > 0)
        prefetch_to_l2(state + static_cast<int64_t>(c) * a.N);
    }
  }
  const float skip = a.skip[head];
  const bool there = lane / kLanes < s.channels;
  const int64_t channel = static_cast<int64_t>(head) * a.P + p0 + lane / kLanes;
  const float next_norm = a.next.x != nullptr && there ? a.next_norm[channel] : 0;
  wait_for_previous();
  if (begin == end) return;

  Four<T> held[kChannels];
  const auto load = [&](int base) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const T* from = state + static_cast<int64_t>(c) * a.N + base;
      if constexpr (kOutgrown) {
        load_outgrown(held[c], from);
      } else {
        held[c] = load_four<kVector>(from, s.states(c, base));
      }
    }
  };
  load(0);
  Row next = s.row_at(begin, 0);
  Step step;  // of one of the next kWarpSize rows
  for (int64_t row = begin; row < end; ++row) {
    Row in = next;
    if (row + 1 < end) next = s.row_at(row + 1, 0);
    const int t = static_cast<int>(row - begin) % kWarpSize;
    if (t == 0) step = step_at(a, min(row + lane, end - 1), head);
    const float decay = __shfl_sync(kAll, step.decay, t), x = in.x;
    const float dtx = __fmul_rn(__shfl_sync(kAll, step.dt, t), x);
    float y[kChannels] = {};
    for (int base = 0; base < a.N; base += kSlab) {
      if (base > 0) in = s.row_at(row, base);
      if (base > 0 || (row > begin && a.N > kSlab)) load(base);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        float4 h = widened(held[c]);
        advance(h, y[c], decay, __shfl_sync(kAll, dtx, c * kLanes), in);
        held[c] = four_of<T>(h);
        T* to = state + static_cast<int64_t>(c) * a.N + base;
        if constexpr (kOutgrown) {
          store_outgrown(to, held[c]);
        } else {
          store_four<kVector>(to, held[c], s.states(c, base));
        }
      }
    }
    float out = sums_of_channels(y);
    const int64_t at = row * a.H * a.P + channel;
    if (there) {
      out = __fmaf_rn(skip, x, out);
      if (a.z != nullptr) out *= silu(in.z);
    }
    if (a.next.x != nullptr) {
      defer_norm<kLanes>(a.next, at, out, next_norm, there);
      if (channel == 0) a.next.scales[row] = 0;
    } else if (there && lane % kLanes == 0) {
      a.y[at] = out;
    }
  }
}

template <typename T>
void launch_steps(const SsdArgs& args, Stream& stream) {
  const auto even = [&](const float* p) {
    return args.xBC_stride % 4 == 0 && reinterpret_cast<uintptr_t>(p) % 16 == 0;
  };
  const bool whole =
      args.N == kSlab && args.P % Shape<T>::kChannels == 0 && even(args.B) && even(args.C);
  auto kernel =
      args.N % 4 == 0 ? ssd_kernel<T, false, true, false> : ssd_kernel<T, false, false, false>;
  const int64_t values = int64_t{args.seqs.num_seqs} * args.H * args.P * args.N;
  if (whole) {
    kernel = outgrows_cache<T>(values) ? ssd_kernel<T, true, true, true>
                                       : ssd_kernel<T, true, true, false>;
  }
  // Percent: no shared memory is needed. Where the states fit the L2 cache, it is more to
  // start while the layer before still runs, and so with its part of the L1 cache.
  constexpr int64_t kCached = int64_t{48} << 20;
  const bool cached = values * static_cast<int64_t>(sizeof(T)) < kCached;
  const int carveout = cached ? cudaSharedmemCarveoutMaxShared : 10;
  constexpr int kChannels = kThreads / kWarpSize * Shape<T>::kChannels;  // a block
  const int tiles = ceil_div(args.P, kChannels);
  launch_early(stream, "ssd", kernel,
               {.grid = static_cast<unsigned>(args.seqs.num_seqs * args.H * tiles),
                .threads = kThreads,
                .carveout = carveout},
               args, tiles);
}

}  // namespace

void ssd_steps(const SsdArgs& args, Stream& stream) {
  with_state_type(args.h.dtype,
                  [&](auto element) { launch_steps<decltype(element)>(args, stream); });
}

void run(const SsdArgs& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  CHECK(args.next.x == nullptr || ssd_defers_norm(args));
  if (args.chunk > 1 && args.seqs.max_len > 1 && !ssd_tiles(args, stream)) {
    ssd_chunks(args, stream);
  }
  ssd_steps(args, stream);
}

}  // namespace recurve::cuda::sm80
