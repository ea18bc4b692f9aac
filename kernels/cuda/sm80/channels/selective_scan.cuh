#pragma once
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/sm80/copies.cuh"
#include "kernels/cuda/sm80/quick_silu.cuh"
#include "kernels/cuda/sm80/rows/activate.cuh"
#include "kernels/cuda/sm80/split_bf16.cuh"
#include "kernels/cuda/sm80/vector.cuh"
#include "kernels/ops/selective_scan.h"

// What the kernels of the selective scan share: all of them must round alike.
namespace recurve::cuda::sm80 {

constexpr int kScanLanes = 4;               // that share a channel, each with its quad of states
constexpr int kScanShort = 4 * kScanLanes;  // states of a channel that fit one quad of each lane
constexpr int kScanThreads = 128;           // of a block that goes row by row
// Bytes of shared memory for each of the states of a channel, where these do not fit registers.
constexpr size_t kBytesOfScannedState = sizeof(float) * kScanThreads / kScanLanes;
constexpr unsigned kAllLanes = 0xffffffffu;

// softplus(x) = max(x, 0) + log(1 + u), u = exp(-|x|), to some units in the last place of fp32 for
// |x| of a few: log(1 + u) = 2 artanh(r), r = u / (2 + u), at most 1/3. Divided by r, that is a
// polynomial of r^2 to 2e-7.
__device__ inline float time_step(float x) {
  const float u = power_of_2(-fabsf(x) * kLog2e);
  const float r = u * reciprocal(2.0f + u), square = r * r;
  float ratio = __fmaf_rn(0.34203619f, square, 0.39593187f);
  ratio = __fmaf_rn(ratio, square, 0.66675848f);
  ratio = __fmaf_rn(ratio, square, 1.9999996f);
  return __fmaf_rn(r, ratio, fmaxf(x, 0.0f));
}

// Four states of a channel. rate: A / ln 2, as the hardware's exponential is one of 2.
struct ScanQuad {
  float4 rate;

  __device__ explicit ScanQuad(const float4& A) {
    rate = make_float4(__fmul_rn(A.x, kLog2e), __fmul_rn(A.y, kLog2e), __fmul_rn(A.z, kLog2e),
                       __fmul_rn(A.w, kLog2e));
  }

  // A row more: what the states add to the output, which all kernels add by pairs.
  __device__ float advance(float4& h, float dt, float dtx, const float4& B, const float4& C) const {
    advance(h.x, dt, dtx, rate.x, B.x);
    advance(h.y, dt, dtx, rate.y, B.y);
    advance(h.z, dt, dtx, rate.z, B.z);
    advance(h.w, dt, dtx, rate.w, B.w);
    return __fadd_rn(pair_sum(h.x, h.y, C.x, C.y), pair_sum(h.z, h.w, C.z, C.w));
  }

  __device__ static void advance(float& h, float dt, float dtx, float rate, float B) {
    h = __fmaf_rn(power_of_2(__fmul_rn(dt, rate)), h, __fmul_rn(dtx, B));
  }
  __device__ static float pair_sum(float h0, float h1, float C0, float C1) {
    return __fmaf_rn(C1, h1, __fmul_rn(C0, h0));
  }
};

__device__ inline float sum_of_scan_lanes(float y) {
  y += __shfl_xor_sync(kAllLanes, y, 1, kScanLanes);
  return y + __shfl_xor_sync(kAllLanes, y, 2, kScanLanes);
}

// B or C of a row: this lane's quad, normed together with those of the adjacent lanes.
__device__ inline float4 normed_quad(float4 v, const SelectiveScanArgs& a) {
  if (a.norm_eps == 0) return v;
  const float scale = norm_scale(sum_of_scan_lanes(squares_of(v)), a.N, a.norm_eps);
  return make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale);
}

__device__ inline float scan_output(const SelectiveScanArgs& a, float y, float skip, float x,
                                    float z) {
  y = __fmaf_rn(skip, x, y);
  return a.z == nullptr ? y : y * quick_silu(z);
}

__device__ inline void put_scan_output(const SelectiveScanArgs& a, int64_t row, int channel,
                                       float y) {
  put(a.y, a.y_bf16, row * a.D + channel, y);
}

// ---- time steps, where the tensor cores make them: a tile of channels of a few rows at a time

constexpr int kStepChannels = 64;  // a tile, by
constexpr int kStepWarps = 8;      // warps: one in four has the same 16 channels, and
constexpr int kStepThreads = kStepWarps * kWarpSize;
constexpr int kStepParts = 2;                  // every second slab of R
constexpr int kStepPitch = kStepChannels + 4;  // floats of a row of sums, against bank conflicts

// Floats from each row of the matrix to the next in shared memory. Rows are apart by half of all
// banks, so that the two that are read at once do not meet.
__host__ __device__ inline int step_weights_pitch(int R) { return R % 64 == 32 ? R : R + 32; }
inline size_t step_weights_bytes(int R) {
  return sizeof(uint16_t) * kStepChannels * static_cast<size_t>(step_weights_pitch(R));
}

struct StepTile {
  float sums[kStepParts][kTileRows][kStepPitch];
  float scale[kTileRows];  // of low
};

// Has the tile's weights on their way to `to`; wait_for_copies() and a barrier follow.
__device__ inline void load_step_weights(const SelectiveScanArgs& a, int channel, uint16_t* to) {
  const int quads = a.R / 8, pitch = step_weights_pitch(a.R);
  const auto* from = static_cast<const uint16_t*>(a.dt_proj.data) + int64_t{channel} * a.R;
  for (int i = threadIdx.x; i < kStepChannels * quads; i += kStepThreads) {
    const auto at =
        static_cast<uint32_t>(__cvta_generic_to_shared(to + i / quads * pitch + i % quads * 8));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from + i * 8)
                 : "memory");
  }
}

// What low (R) is to be multiplied with. By a whole warp.
__device__ inline float low_scale(const SelectiveScanArgs& a, const float* low) {
  float squares = 0;
  for (int r = threadIdx.x % kWarpSize; r < a.R; r += kWarpSize) {
    squares = __fmaf_rn(low[r], low[r], squares);
  }
  return norm_scale(warp_sum(squares), a.R, a.norm_eps);
}

// The sums of the rows [row, row + rows), at most kTileRows: a barrier follows. By the whole block.
__device__ inline void multiply_step_rows(const SelectiveScanArgs& a, const uint16_t* weights,
                                          int64_t row, int rows, StepTile& tile) {
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int m0 = warp % 4 * kTileN, part = warp / 4, pitch = step_weights_pitch(a.R);
  const int k = 8 * (lane % 4);
  const uint16_t* w = weights + (m0 + lane / 4) * pitch + k;
  const float* x = a.params + (row + min(lane / 4, rows - 1)) * a.params_stride + k;
  Accumulator<1, 1> sum;
#pragma unroll 4
  for (int slab = part * kSlab; slab < a.R; slab += kStepParts * kSlab) {
    const uint4 own[2] = {*reinterpret_cast<const uint4*>(w + slab),
                          *reinterpret_cast<const uint4*>(w + 8 * pitch + slab)};
    sum.add(own, 0,
            split(*reinterpret_cast<const float4*>(x + slab),
                  *reinterpret_cast<const float4*>(x + slab + 4)));
  }
  sum.for_each([&](int n, int r, float value) { tile.sums[part][r][m0 + n] = value; });
  if (a.norm_eps > 0 && warp < rows) {
    const float scale = low_scale(a, a.params + (row + warp) * a.params_stride);
    if (lane == 0) tile.scale[warp] = scale;
  }
}

// The time step of a row of the tile before bias and softplus.
__device__ inline float time_step_sum(const SelectiveScanArgs& a, const StepTile& tile, int row,
                                      int channel) {
  const float sum = tile.sums[0][row][channel] + tile.sums[1][row][channel];
  return a.norm_eps > 0 ? __fmul_rn(sum, tile.scale[row]) : sum;
}

// The weights of a tile of channels with more do not fit with the sums and states of a tile.
constexpr int kLargestStepRank = 256;
// Whether the tensor cores make the time steps: follows from shape and place alone.
inline bool takes_step_tiles(const SelectiveScanArgs& a) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return a.dt_proj.dtype == DType::kBF16 && a.R % kSlab == 0 && a.R <= kLargestStepRank &&
         a.D % kStepChannels == 0 && a.params_stride % 4 == 0 && aligned(a.params) &&
         aligned(a.dt_proj.data);
}

// Has the time steps of all rows made, in scratch (rows, D). Where takes_step_tiles(), N is
// kScanShort and norm_eps is not 0, also B and C of all rows, normed, behind them (rows, 2 N).
void selective_scan_time_steps(const SelectiveScanArgs& args, Stream& stream);

// Where takes_step_tiles(), N is kScanShort and every sequence has one row: the whole op.
void selective_scan_steps(const SelectiveScanArgs& args, Stream& stream);

}  // namespace recurve::cuda::sm80
