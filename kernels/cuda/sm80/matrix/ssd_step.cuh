#pragma once
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/matrix/chunks.cuh"
#include "kernels/cuda/sm80/matrix/ssd.cuh"
#include "kernels/cuda/sm80/rows/activate.cuh"
#include "kernels/cuda/sm80/vector.cuh"

// What the step forms of the state space share: how warps and lanes stand, and how a row's outputs
// are left.
namespace recurve::cuda::sm80::ssd {

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
  // Values of B or C for the lane's states of a slab.
  __device__ float4 load_row(const float* from, int base) const {
    if constexpr (kWhole) return *reinterpret_cast<const float4*>(from);
    return load4<false>(from, states(0, base));
  }
  __device__ Row row_at(int64_t row, int base) const {
    const int lane = threadIdx.x % kWarpSize;
    const int64_t inputs = row * a.xBC_stride;
    const int64_t BC = inputs + static_cast<int64_t>(head / (a.H / a.G)) * a.N + base + n;
    const int64_t p = int64_t{head} * a.P + p0 + min(lane / Shape<T>::kLanes, channels - 1);
    const float x = a.x[inputs + p], z = a.z == nullptr ? 0 : a.z[row * a.z_stride + p];
    return {x, z, load_row(a.B + BC, base), load_row(a.C + BC, base)};
  }
};

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

// Asks for a warp's states. Of the first blocks alone: the others find the kernel before this one
// gone.
template <typename T, bool kWhole>
__device__ void fetch_states(const Lane<T, kWhole>& s, const T* state) {
  if (blockIdx.x >= kFirstBlocks) return;
#pragma unroll
  for (int c = 0; c < Shape<T>::kChannels; ++c) {
    if (s.n % (kLineBytes / sizeof(T)) == 0 && s.states(c, 0) > 0)
      prefetch_to_l2(state + static_cast<int64_t>(c) * s.a.N);
  }
}

// What a lane adds to the sums of its channel, and where they go.
struct Output {
  int64_t channel;  // of a row of y
  bool there;       // or the warp has fewer channels
  float skip, next_norm;

  template <typename T, bool kWhole>
  __device__ explicit Output(const Lane<T, kWhole>& s) {
    const int lane = threadIdx.x % kWarpSize;
    there = lane / Shape<T>::kLanes < s.channels;
    channel = static_cast<int64_t>(s.head) * s.a.P + s.p0 + lane / Shape<T>::kLanes;
    skip = s.a.skip[s.head];
    next_norm = s.a.next.x != nullptr && there ? s.a.next_norm[channel] : 0;
  }
  // sum: of the channel's states. By a warp.
  template <int kLanes>
  __device__ void put(const SsdArgs& a, int64_t row, float sum, float x, float z) const {
    const int64_t at = row * a.H * a.P + channel;
    if (there) {
      sum = __fmaf_rn(skip, x, sum);
      if (a.z != nullptr) sum *= silu(z);
    }
    if (a.next.x != nullptr) {
      defer_norm<kLanes>(a.next, at, sum, next_norm, there);
      if (channel == 0) a.next.scales[row] = 0;
    } else if (there && threadIdx.x % kWarpSize % kLanes == 0) {
      a.y[at] = sum;
    }
  }
};

// How kernels of one block for some channels of a head of a sequence are launched.
struct Launch {
  bool whole, vector, outgrown;
  int tiles;  // of the channels of a head
  LaunchShape shape;
};
template <typename T>
Launch launch_of(const SsdArgs& args) {
  const auto even = [](const float* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  const int64_t values = int64_t{args.seqs.num_seqs} * args.H * args.P * args.N;
  // Percent: no shared memory is needed. Where the states fit the L2 cache, it is more to
  // start while the layer before still runs, and so with its part of the L1 cache.
  constexpr int64_t kCached = int64_t{48} << 20;
  const bool cached = values * static_cast<int64_t>(sizeof(T)) < kCached;
  constexpr int kChannels = kThreads / kWarpSize * Shape<T>::kChannels;  // a block
  const int tiles = ceil_div(args.P, kChannels);
  return {.whole = args.N == kSlab && args.P % Shape<T>::kChannels == 0 &&
                   args.xBC_stride % 4 == 0 && even(args.B) && even(args.C),
          .vector = args.N % 4 == 0,
          .outgrown = outgrows_cache<T>(values),
          .tiles = tiles,
          .shape = {.grid = static_cast<unsigned>(args.seqs.num_seqs * args.H * tiles),
                    .threads = kThreads,
                    .carveout = cached ? cudaSharedmemCarveoutMaxShared : 10}};
}

}  // namespace recurve::cuda::sm80::ssd
