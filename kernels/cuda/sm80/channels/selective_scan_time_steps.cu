// The time steps of a selective scan, all rows at once.
#include <algorithm>

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/channels/selective_scan.cuh"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kRows = 32;        // of a turn of a block
constexpr int kTileHeight = 16;  // here the rows are the tall side of an mma,
constexpr int kColumns = 8;      // and so many channels its columns
constexpr int kColumnTiles = 4;  // of a warp
constexpr int kRowTiles = kRows / kTileHeight;
constexpr int kParts = 3;  // bf16 values that make up an activation
constexpr int kMostSlabs = kLargestStepRank / kSlab;

// A warp keeps the weights of its channels in registers, and all rows of its block pass by them.
constexpr int kWarps = 8, kThreads = kWarps * kWarpSize;
constexpr int kWarpChannels = kColumnTiles * kColumns;
constexpr int kChannels = kWarps * kWarpChannels;  // of a block

// kSlabs, here and below: of R.
template <int kSlabs>
struct Shared {
  float raw[2][kRows][kSlabs * kSlab];  // low, as it comes
  // The same, split as the lanes of a warp take it, half a slab at a time.
  uint4 low[2][kSlabs][kParts][kRowTiles][2][kWarpSize];
  float scale[2][kRows];
};

// Has rows of low on their way; wait_for_copies() and a barrier follow. Rows beyond the last
// are the last again.
template <int kSlabs>
__device__ void load_rows(const SelectiveScanArgs& a, int64_t row, float (*to)[kSlabs * kSlab]) {
  constexpr int kQuads = kSlabs * kSlab / 4;
  for (int i = threadIdx.x; i < kRows * kQuads; i += kThreads) {
    const int r = i / kQuads, column = i % kQuads * 4;
    const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(&to[r][column]));
    const int64_t from = min(row + r, int64_t{a.seqs.rows} - 1);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at),
                 "l"(a.params + from * a.params_stride + column)
                 : "memory");
  }
}

__device__ inline Split split_eight(const float* x) {
  return split(*reinterpret_cast<const float4*>(x), *reinterpret_cast<const float4*>(x + 4));
}

// A thread: eight values of two rows that lie in one lane.
template <int kSlabs>
__device__ void split_rows(const SelectiveScanArgs& a, Shared<kSlabs>& shared, int turn) {
  constexpr int kEights = kSlabs * kSlab / 8, kItems = kRows / 2 * kEights;
  const auto& raw = shared.raw[turn];
  for (int i = threadIdx.x; i < kItems; i += kThreads) {
    const int k = i % kEights, pair = i / kEights, tile = pair / 8;
    const int r = tile * kTileHeight + pair % 8, lane = pair % 8 * 4 + k % 4;
    const Split first = split_eight(&raw[r][8 * k]), second = split_eight(&raw[r + 8][8 * k]);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const uint4 &x = first.part[part], &y = second.part[part];
      auto& to = shared.low[turn][k / 4][part][tile];
      to[0][lane] = make_uint4(x.x, y.x, x.y, y.y);
      to[1][lane] = make_uint4(x.z, y.z, x.w, y.w);
    }
  }
  const int warp = threadIdx.x / kWarpSize;
  for (int r = warp; r < kRows; r += kWarps) {
    const float scale = a.norm_eps > 0 ? low_scale(a, raw[r]) : 1.0f;
    if (threadIdx.x % kWarpSize == 0) shared.scale[turn][r] = scale;
  }
}

// B and C of the rows, behind the time steps.
__device__ void put_normed(const SelectiveScanArgs& a, int64_t row, int rows) {
  constexpr int kQuads = 2 * kScanLanes;
  float* to = a.scratch + int64_t{a.seqs.rows} * a.D + row * 4 * kQuads;
  const int lanes = (rows * kQuads + kWarpSize - 1) / kWarpSize * kWarpSize;
  for (int i = threadIdx.x; i < lanes; i += kThreads) {
    const int r = i / kQuads, quad = i % kQuads;
    const float* from = a.params + (row + min(r, rows - 1)) * a.params_stride + a.R + 4 * quad;
    const float4 v = normed_quad(*reinterpret_cast<const float4*>(from), a);
    if (r < rows) *reinterpret_cast<float4*>(to + 4 * i) = v;
  }
}

// A warp's part of the projection.
template <int kSlabs>
struct Weights {
  uint4 w[kSlabs][kColumnTiles];

  __device__ Weights(const SelectiveScanArgs& a, int channel) {
    const int lane = threadIdx.x % kWarpSize;
    const auto* from = static_cast<const uint16_t*>(a.dt_proj.data) +
                       int64_t{channel + lane / 4} * (kSlabs * kSlab) + 8 * (lane % 4);
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) {
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        w[slab][n] =
            *reinterpret_cast<const uint4*>(from + n * kColumns * (kSlabs * kSlab) + slab * kSlab);
      }
    }
  }

  // The sums of a tile of rows, each made as multiply_step_rows() does.
  __device__ void multiply(const Shared<kSlabs>& shared, int turn, int tile,
                           float (&sums)[kColumnTiles][4]) const {
    const int lane = threadIdx.x % kWarpSize;
#pragma unroll
    for (int parity = 0; parity < kStepParts; ++parity) {
      float large[kColumnTiles][4] = {}, small[kColumnTiles][4] = {};
#pragma unroll
      for (int slab = parity; slab < kSlabs; slab += kStepParts) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int part = 0; part < kParts; ++part) {
            const uint4 x = shared.low[turn][slab][part][tile][half][lane];
#pragma unroll
            for (int n = 0; n < kColumnTiles; ++n) {
              const uint4& own = w[slab][n];
              mma(part == 0 ? large[n] : small[n], x.x, x.y, x.z, x.w, half == 0 ? own.x : own.z,
                  half == 0 ? own.y : own.w);
            }
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kColumnTiles * 4; ++i) {
        const float value = __fadd_rn(large[i / 4][i % 4], small[i / 4][i % 4]);
        float& sum = sums[i / 4][i % 4];
        sum = parity == 0 ? value : __fadd_rn(sum, value);
      }
    }
  }
};

// What a lane has of the channels of its warp.
struct Own {
  int channel;  // the first
  float2 bias[kColumnTiles];

  // first: of the warp.
  __device__ Own(const SelectiveScanArgs& a, int first)
      : channel(first + 2 * (static_cast<int>(threadIdx.x) % 4)) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      const float* from = a.dt_bias + channel + n * kColumns;
      bias[n] = make_float2(from[0], from[1]);
    }
  }

  // The time steps of a lane's two rows of a tile, so many of kRows there.
  __device__ void put(const SelectiveScanArgs& a, int64_t row, int rows, int tile,
                      const float (&scales)[kRows], const float (&sums)[kColumnTiles][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = tile * kTileHeight + 8 * half + static_cast<int>(threadIdx.x) % kWarpSize / 4;
      if (r >= rows) continue;
      float* to = a.scratch + (row + r) * a.D + channel;
      const auto step = [&](float sum, float added) {
        return time_step(__fadd_rn(__fmul_rn(sum, scales[r]), added));
      };
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        *reinterpret_cast<float2*>(to + n * kColumns) =
            make_float2(step(sums[n][2 * half], bias[n].x), step(sums[n][2 * half + 1], bias[n].y));
      }
    }
  }
};

// A block: a tile of channels of `each` times kRows rows.
template <int kSlabs>
__global__ void __launch_bounds__(kThreads, 1) time_steps_kernel(SelectiveScanArgs a, int each) {
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared<kSlabs>*>(memory);
  let_next_start();
  const int warp = threadIdx.x / kWarpSize;
  // Beyond the last channels, the last again.
  const int channel =
      min(static_cast<int>(blockIdx.x) * kChannels + warp * kWarpChannels, a.D - kWarpChannels);
  const int64_t first = int64_t{blockIdx.y} * each * kRows;
  const int count = static_cast<int>(min(int64_t{each} * kRows, a.seqs.rows - first));
  const int turns = (count + kRows - 1) / kRows;
  const bool norms = a.norm_eps > 0 && blockIdx.x == 0 && a.N == kScanShort;
  const Weights<kSlabs> weights(a, channel);
  const Own own(a, channel);
  wait_for_previous();
  load_rows<kSlabs>(a, first, shared.raw[0]);
  wait_for_copies();
  __syncthreads();
  if (turns > 1) load_rows<kSlabs>(a, first + kRows, shared.raw[1]);
  split_rows(a, shared, 0);
  for (int i = 0; i < turns; ++i) {
    const int turn = i % 2, rows = min(kRows, count - i * kRows);
    const int64_t row = first + i * kRows;
    wait_for_copies();
    __syncthreads();
    // Half of the warps, one of two that share a part of the multiprocessor, split the next rows
    // while the others multiply these.
#pragma unroll 1
    for (int phase = 0; phase < 2; ++phase) {
      if ((phase == 0) == (warp < kWarps / 2)) {
        if (i + 2 < turns) load_rows<kSlabs>(a, row + 2 * kRows, shared.raw[turn]);
        if (i + 1 < turns) split_rows(a, shared, 1 - turn);
        if (norms) put_normed(a, row, rows);
        continue;
      }
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        float sums[kColumnTiles][4];
        weights.multiply(shared, turn, tile, sums);
        own.put(a, row, rows, tile, shared.scale[turn], sums);
      }
    }
  }
}

// Groups of rows, so that the blocks fill the GPU evenly.
int groups_of(int row_tiles, int across, int multiprocessors) {
  constexpr int kStart = 3;  // turns that a block's beginning is worth
  int best = 1, least = 1 << 30;
  for (int groups = 1; groups <= std::min(row_tiles, multiprocessors); ++groups) {
    const int each = ceil_div(row_tiles, groups);
    const int cost =
        ceil_div(across * ceil_div(row_tiles, each), multiprocessors) * (each + kStart);
    if (cost < least) {
      least = cost;
      best = groups;
    }
  }
  return best;
}

template <int kSlabs>
void launch_time_steps(const SelectiveScanArgs& args, Stream& stream) {
  if (args.R != kSlabs * kSlab) {
    if constexpr (kSlabs < kMostSlabs) launch_time_steps<kSlabs + 1>(args, stream);
    return;
  }
  const int tiles = ceil_div(args.seqs.rows, kRows), across = ceil_div(args.D, kChannels);
  const int each =
      ceil_div(tiles, groups_of(tiles, across, static_cast<CudaStream&>(stream).multiprocessors()));
  constexpr size_t kBytes = sizeof(Shared<kSlabs>);
  const auto kernel = time_steps_kernel<kSlabs>;
  abort_if_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(kBytes)),
                  "selective_scan, shared memory");
  launch_early(
      stream, "selective_scan, time steps", kernel,
      {.grid = {static_cast<unsigned>(across), static_cast<unsigned>(ceil_div(tiles, each))},
       .threads = kThreads,
       .shared = kBytes},
      args, each);
}

__device__ float step_weight_at(const Matrix& W, int64_t index) {
  return W.dtype == DType::kBF16 ? widen_bf16(static_cast<const uint16_t*>(W.data)[index])
                                 : static_cast<const float*>(W.data)[index];
}

// Does the same for any rank and number of channels. A thread makes one time step.
constexpr int kAnyThreads = 128;
__global__ void __launch_bounds__(kAnyThreads)
    any_time_steps_kernel(SelectiveScanArgs a, int tiles) {
  let_next_start();
  wait_for_previous();
  const int64_t row = blockIdx.x / tiles;
  const int channel = static_cast<int>(blockIdx.x) % tiles * kAnyThreads + threadIdx.x;
  if (channel >= a.D) return;
  const float* low = a.params + row * a.params_stride;
  float sum = 0, squares = 0;
  for (int r = 0; r < a.R; ++r) {
    sum = fmaf(step_weight_at(a.dt_proj, int64_t{channel} * a.R + r), low[r], sum);
    squares = fmaf(low[r], low[r], squares);
  }
  if (a.norm_eps > 0) sum *= norm_scale(squares, a.R, a.norm_eps);
  a.scratch[row * a.D + channel] = time_step(sum + a.dt_bias[channel]);
}

}  // namespace

void selective_scan_time_steps(const SelectiveScanArgs& args, Stream& stream) {
  if (takes_step_tiles(args)) return launch_time_steps<1>(args, stream);
  const int tiles = ceil_div(args.D, kAnyThreads);
  launch_early(stream, "selective_scan, time steps", any_time_steps_kernel,
               {.grid = static_cast<unsigned>(args.seqs.rows * tiles), .threads = kAnyThreads},
               args, tiles);
}

}  // namespace recurve::cuda::sm80
