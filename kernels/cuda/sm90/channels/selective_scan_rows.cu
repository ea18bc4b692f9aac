// The selective scan of prompts, after their time steps are made. Rows go one after the other: a
// channel's states stay in the registers of a few lanes, and all else is kept away from these: a
// warp has rows copied ahead, others turn sums over the states into outputs. A lone prompt of
// mamba-2.8b is bound by the shared memory that lanes read rows from (85 % of its rate on an H200,
// the exponentials are at 60 %), several by both.
#include <algorithm>

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/channels/selective_scan.h"
#include "kernels/cuda/sm90/channels/selective_scan_rows.cuh"

namespace recurve::cuda::sm90 {
namespace {

using namespace row_scan;  // NOLINT: this kernel's own

// kCount floats side by side.
template <int kCount>
struct Floats {
  float v[kCount];
  __device__ explicit Floats(const float* from) {
    if constexpr (kCount == 1) {
      v[0] = *from;
    } else if constexpr (kCount == 2) {
      const float2 two = *reinterpret_cast<const float2*>(from);
      v[0] = two.x;
      v[1] = two.y;
    } else {
      const float4 four = *reinterpret_cast<const float4*>(from);
      v[0] = four.x;
      v[1] = four.y;
      v[2] = four.z;
      v[3] = four.w;
    }
  }
};

// What a lane of a scanning warp keeps: so many states of a channel.
template <typename T, typename TileConfig, int kStates>
struct Scan {
  static constexpr int kLanesOfChannel = kN / kStates;
  int channel, part;  // of the block's channels; of the lanes that share it
  int chunk, left;    // rows of a chunk, and to the end of this one
  float h[kStates], rate[kStates];

  __device__ Scan(const SelectiveScanArgs& a, const BlockCoord& block, int first, const T* state)
      : chunk(a.chunk), left(a.chunk) {
    const int lane = threadIdx.x % kWarpSize;
    channel = first + lane / kLanesOfChannel;
    part = lane % kLanesOfChannel;
#pragma unroll
    for (int s = 0; s < kStates; ++s) {
      rate[s] = __fmul_rn(a.A[int64_t{block.channel} * kN + at(s)], kLog2e);
      h[s] = value_of(state[at(s)]);
    }
  }
  __device__ int at(int s) const { return channel * kN + part * kStates + s; }

  __device__ void keep(T* state) const {
#pragma unroll
    for (int s = 0; s < kStates; ++s) state[at(s)] = kept_as<T>(h[s]);
  }

  // A row on: what a quad of states adds to the output.
  __device__ float advance(const Stage<TileConfig>& stage, int row) {
    const float dt = stage.dt[row * TileConfig::kChannels + channel];
    const float dtx = __fmul_rn(dt, stage.x[row * TileConfig::kChannels + channel]);
    const Floats<kStates> B(stage.BC + row * 2 * kN + part * kStates);
    const Floats<kStates> C(stage.BC + row * 2 * kN + kN + part * kStates);
#pragma unroll
    for (int s = 0; s < kStates; ++s) ScanQuad::advance(h[s], dt, dtx, rate[s], B.v[s]);
    const float sum = ScanQuad::pair_sum(h[0], h[1], C.v[0], C.v[1]);
    if constexpr (kStates == 4) {
      return __fadd_rn(sum, ScanQuad::pair_sum(h[2], h[3], C.v[2], C.v[3]));
    } else {
      return __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 1));
    }
  }

  // The rows of a chunk end where they end, and what is kept is rounded there.
  __device__ void count_rows(int rows) {
    if constexpr (!std::is_same_v<T, float>) {
      left -= rows;
      if (left > 0) return;
      left = chunk;
#pragma unroll
      for (int s = 0; s < kStates; ++s) h[s] = rounded<T>(h[s]);
    }
  }

  __device__ void advance_all(const Stage<TileConfig>& stage, int rows) {
    const bool writes = kStates == 4 || part % 2 == 0;
    float4* to = stage.sum + Stage<TileConfig>::place_of(channel, part * kStates / 4);
    if (rows == kRows && (std::is_same_v<T, float> || left >= kRows)) {
      float sums[kRows];
#pragma unroll
      for (int row = 0; row < kRows; ++row) sums[row] = advance(stage, row);
      count_rows(kRows);
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        if (writes) {
          to[q * TileConfig::kChannels * kLanes] =
              make_float4(sums[4 * q], sums[4 * q + 1], sums[4 * q + 2], sums[4 * q + 3]);
        }
      }
      return;
    }
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
      const float sum = advance(stage, row);
      count_rows(1);
      auto* four = reinterpret_cast<float*>(to + row / 4 * TileConfig::kChannels * kLanes);
      if (writes) four[row % 4] = sum;
    }
  }
};

// first: of the block's channels.
template <int kStates, typename T, typename TileConfig>
__device__ void scan_rows_of(const SelectiveScanArgs& a, const BlockCoord& block, int first,
                             Ring<TileConfig> ring, Shared& shared, T* state) {
  Scan<T, TileConfig, kStates> scan(a, block, first, state);
  for (int step = 0; step < block.steps(); ++step, ring.next()) {
    const Stage<TileConfig> stage = ring.stage();
    wait(&shared.full[ring.at], ring.parity);
    scan.advance_all(stage, block.rows(step));
    __syncwarp();
    if (threadIdx.x % kWarpSize == 0) arrive(&shared.summed[ring.at]);
  }
  scan.keep(state);
}

__device__ inline float4 sum_of(const float4& a, const float4& b) {
  return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z),
                     __fadd_rn(a.w, b.w));
}

// A thread: four rows of a channel.
template <typename TileConfig>
__device__ void put_outputs(const SelectiveScanArgs& a, const BlockCoord& block, int thread,
                            Ring<TileConfig> ring, Shared& shared) {
  const int quad = thread / TileConfig::kChannels, own = thread % TileConfig::kChannels;
  const int channel = block.channel + own;
  const float skip = a.skip[channel];
  int64_t at = (block.begin + 4 * quad) * a.D + channel;  // of the first of its outputs
  for (int step = 0; step < block.steps(); ++step, ring.next()) {
    const int rows = block.rows(step) - 4 * quad;
    const Stage<TileConfig> stage = ring.stage();
    wait(&shared.full[ring.at], ring.parity);
    float x[4], z[4] = {};
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const int in = (4 * quad + t) * TileConfig::kChannels + own;
      x[t] = stage.x[in];
      if (a.z != nullptr) z[t] = stage.z[in];
    }
    wait(&shared.summed[ring.at], ring.parity);
    float4 sums[kLanes];
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      sums[lane] =
          stage.sum[quad * TileConfig::kChannels * kLanes + Stage<TileConfig>::place_of(own, lane)];
    }
    __syncwarp();
    if (threadIdx.x % kWarpSize == 0) arrive(&shared.free[ring.at]);
    const float4 sum = sum_of(sum_of(sums[0], sums[1]), sum_of(sums[2], sums[3]));
    const float y[4] = {
        scan_output(a, sum.x, skip, x[0], z[0]), scan_output(a, sum.y, skip, x[1], z[1]),
        scan_output(a, sum.z, skip, x[2], z[2]), scan_output(a, sum.w, skip, x[3], z[3])};
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      if (t < rows) put(a.y, a.y_bf16, at + t * a.D, y[t]);
    }
    at += kRows * a.D;
  }
}

template <typename T, typename TileConfig>
__global__ void __launch_bounds__(TileConfig::kWarps* kWarpSize, TileConfig::kBlocks)
    rows_kernel(SelectiveScanArgs a, LaunchParams params) {
  extern __shared__ __align__(128) float memory[];
  __shared__ Shared shared;
  let_next_start();
  if (threadIdx.x == 0) {
    for (int s = 0; s < params.stages; ++s) {
      init_barrier(&shared.full[s], kWarpSize);
      init_barrier(&shared.summed[s], TileConfig::kQuadWarps + TileConfig::kPairWarps);
      init_barrier(&shared.free[s], TileConfig::kChannels * kQuads / kWarpSize);
    }
    publish_barriers();
  }
  __syncthreads();
  wait_for_previous();
  const int sequence = static_cast<int>(blockIdx.x) / params.tiles;
  const int channel = static_cast<int>(blockIdx.x) % params.tiles * TileConfig::kChannels;
  const int begin = a.seqs.begin[sequence];
  const BlockCoord block{begin, a.seqs.begin[sequence + 1] - begin, channel};
  const Ring<TileConfig> ring{memory, params.stages};
  T* state = values_of<T>(a.h) + (int64_t{a.seqs.slot[sequence]} * a.D + channel) * kN;
  const int warp = threadIdx.x / kWarpSize;
  const WarpRole mine = TileConfig::role_of(warp);
  switch (mine.role) {
    case Role::kScanQuads:
      return scan_rows_of<4>(a, block, 8 * mine.number, ring, shared, state);
    case Role::kScanPairs:
      if constexpr (TileConfig::kPairWarps > 0) {
        scan_rows_of<2>(a, block, 8 * TileConfig::kQuadWarps + 4 * mine.number, ring, shared,
                        state);
      }
      return;
    case Role::kPutOutputs:
      return put_outputs(a, block, mine.number * kWarpSize + threadIdx.x % kWarpSize, ring, shared);
    case Role::kBringRows:
      return bring_rows(a, params, block, ring, shared);
  }
}

template <typename T, typename TileConfig>
void launch_rows(const SelectiveScanArgs& args, int stages, Stream& stream) {
  const bool normed = args.norm_eps > 0;
  const LaunchParams params{
      args.D / TileConfig::kChannels, stages,
      normed ? args.scratch + int64_t{args.seqs.rows} * args.D : args.params + args.R,
      normed ? 2 * kN : args.params_stride};
  const auto bytes = static_cast<size_t>(stages * Stage<TileConfig>::kBytes);
  abort_if_failed(
      cudaFuncSetAttribute(rows_kernel<T, TileConfig>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(bytes)),
      "selective_scan, shared memory");
  launch_early(stream, "selective_scan, rows", rows_kernel<T, TileConfig>,
               {.grid = static_cast<unsigned>(args.seqs.num_seqs * params.tiles),
                .threads = TileConfig::kWarps * kWarpSize,
                .shared = bytes},
               args, params);
}

// What a row costs where a multiprocessor has so many blocks, in cycles as an H200 takes them.
int cost_of_even(int blocks) {
  if (blocks <= 2) return blocks == 1 ? 70 : 110;
  return 52 * blocks;  // three at a time
}
int cost_of_mixed(int blocks) { return 77 * blocks; }  // one at a time

template <typename T>
void launch_config(const SelectiveScanArgs& args, Stream& stream) {
  const int multiprocessors = static_cast<CudaStream&>(stream).multiprocessors();
  const auto blocks_each = [&](int channels) {
    return ceil_div(args.seqs.num_seqs * (args.D / channels), multiprocessors);
  };
  const int even = blocks_each(Even::kChannels), mixed = blocks_each(Mixed::kChannels);
  if (args.D % Mixed::kChannels == 0 && cost_of_mixed(mixed) < cost_of_even(even)) {
    return launch_rows<T, Mixed>(args, 4, stream);
  }
  // There are as many stages as leave no memory for a third or second block on a multiprocessor
  // where each can have two or one, as blocks are not spread evenly of themselves.
  launch_rows<T, Even>(args, even == 1 ? kMostStages : even == 2 ? 6 : 4, stream);
}

}  // namespace

bool takes_scan_rows(const SelectiveScanArgs& a) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return takes_step_tiles(a) && a.N == kN && a.x_stride % 4 == 0 && a.z_stride % 4 == 0 &&
         aligned(a.x) && aligned(a.z) && aligned(a.scratch);
}

void scan_rows(const SelectiveScanArgs& args, Stream& stream) {
  selective_scan_time_steps(args, stream);
  with_state_type(args.h.dtype, [&](auto kept) { launch_config<decltype(kept)>(args, stream); });
}

}  // namespace recurve::cuda::sm90
