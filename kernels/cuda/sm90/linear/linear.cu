#include <algorithm>
#include <vector>

#include "kernels/check.h"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/channels/causal_conv1d.h"
#include "kernels/cuda/sm80/linear/linear_bf16.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm90/linear/linear_group.h"
#include "kernels/cuda/sm90/linear/linear_launch.cuh"
#include "kernels/cuda/sm90/linear/linear_packed.h"
#include "kernels/cuda/sm90/linear/linear_persistent.h"
#include "kernels/cuda/sm90/linear/linear_plan.h"
#include "kernels/cuda/sm90/ops.h"
#include "kernels/formats/int4.h"
#include "kernels/formats/int8.h"

namespace recurve::cuda::sm90 {
namespace {

// One block a row of x: y = x, or x times the norm's weights, in bf16, and the norm's scale. K is a
// multiple of 8. shared: (K / 8) floats where there is a norm. Of few rows a block has many
// threads, as it is their latency that counts; of many, blocks of few make better use of memory.
constexpr int kHeld = 4;  // fours of a row that a thread has on their way
template <int kRoundThreads>
__global__ void __launch_bounds__(kRoundThreads)
    round_kernel(const float* x, const float* norm, float eps, int K, uint16_t* y, float* scales) {
  extern __shared__ float squares[];
  let_next_start();
  const int fours = K / 4;
  const auto* from = reinterpret_cast<const float4*>(x + static_cast<int64_t>(blockIdx.x) * K);
  auto* to = reinterpret_cast<uint2*>(y + static_cast<int64_t>(blockIdx.x) * K);
  for (int first = 0; first < fours; first += kHeld * kRoundThreads) {
    float4 held[kHeld], weights[kHeld];
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {  // no kernel writes these
      const int i = first + j * kRoundThreads + static_cast<int>(threadIdx.x);
      const bool weighted = norm != nullptr && i < fours;
      weights[j] = weighted ? reinterpret_cast<const float4*>(norm)[i] : make_float4(1, 1, 1, 1);
    }
    wait_for_previous();
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = first + j * kRoundThreads + static_cast<int>(threadIdx.x);
      if (i < fours) held[j] = from[i];
    }
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = first + j * kRoundThreads + static_cast<int>(threadIdx.x);
      if (i >= fours) break;  // as the adjacent thread, which has the other half of eight
      const float4 v = held[j] * weights[j];
      to[i] = make_uint2(round_bf16(v.x, v.y), round_bf16(v.z, v.w));
      if (norm == nullptr) continue;
      const float sum = sum_of_eight(squares_of(held[j]));
      if (i % 2 == 0) squares[i / 2] = sum;
    }
  }
  if (norm == nullptr) return;
  __syncthreads();
  if (threadIdx.x >= kWarpSize) return;
  RowSquares<8> sums;
  sums.load(squares, K);
  const float scale = sums.scale(squares, K, eps);
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
}

void linear_rows(const LinearArgs& args, const Rows& x, Stream& stream) {
  if (args.W.format == &kInt8Weights) return linear_int8(args, x, stream);
  if (args.W.format == &kInt4Weights) return linear_int4(args, x, stream);
  const LinearPlan plan =
      plan_linear(args, {.multiprocessors = static_cast<CudaStream&>(stream).multiprocessors(),
                         .clusters_at_once = plain_clusters_at_once});
  if (plan.persistent) return launch_persistent(*plan.persistent, args, x, false, stream);
  with_tiling<PlainWeights>(plan.tiles.tiling,
                            [&]<typename T>(T) { launch_linear<T>(args, x, plan.tiles, stream); });
}

// scales: of the rows, where there is a norm.
void round_rows(const LinearArgs& args, uint16_t* rounded, float* scales, Stream& stream) {
  const size_t squares =
      args.norm == nullptr ? 0 : args.W.K / DeferredRmsNorm::kSquares * sizeof(float);
  const auto launch = [&]<int kThreads>() {
    launch_early(stream, "linear, rounding", round_kernel<kThreads>,
                 {.grid = static_cast<unsigned>(args.rows), .threads = kThreads, .shared = squares},
                 args.x, args.norm, args.norm_eps, static_cast<int>(args.W.K), rounded, scales);
  };
  constexpr int kFewRows = 1024;
  if (args.rows <= kFewRows) return launch.operator()<512>();
  launch.operator()<128>();
}

// The scales of a deferred norm, by a warp a row.
constexpr int kScaleThreads = 128;
__global__ void __launch_bounds__(kScaleThreads)
    scales_kernel(const float* squares, int rows, int K, float eps, float* scales) {
  let_next_start();
  wait_for_previous();
  const int row = static_cast<int>(blockIdx.x * kScaleThreads + threadIdx.x) / kWarpSize;
  if (row >= rows) return;
  const float* mine = squares + static_cast<int64_t>(row) * (K / DeferredRmsNorm::kSquares);
  RowSquares<8> sums;
  sums.load(mine, K);
  const float scale = sums.scale(mine, K, eps);
  if (threadIdx.x % kWarpSize == 0) scales[row] = scale;
}

// A layer whose norm was deferred to it. Few rows' scales are found by the blocks that multiply
// them.
void linear_deferred(const LinearArgs& args, Stream& stream) {
  const DeferredRmsNorm& deferred = args.deferred;
  if (args.rows <= kMostRowsOfDeferredNorm) {
    return linear_rows(
        args, {.x = deferred.x, .squares = deferred.squares, .found = deferred.scales}, stream);
  }
  launch_early(stream, "linear, scales", scales_kernel,
               {.grid = static_cast<unsigned>(ceil_div(args.rows, kScaleThreads / kWarpSize)),
                .threads = kScaleThreads},
               deferred.squares, args.rows, static_cast<int>(args.W.K), args.norm_eps,
               deferred.scales);
  linear_rows(args, {.x = deferred.x, .scales = deferred.scales, .made = true}, stream);
}

// Some of the rows.
LinearArgs rows_of(const LinearArgs& args, int first, int rows) {
  LinearArgs part = args;
  part.rows = rows;
  part.x = args.x + first * args.W.K;
  const int64_t at = first * args.outputs();
  if (args.y != nullptr) part.y = args.y + at;
  if (args.y_bf16 != nullptr) part.y_bf16 = args.y_bf16 + at;
  if (args.residual != nullptr) part.residual = args.residual + at;
  return part;
}

}  // namespace

void run(const LinearArgs& args, Stream& stream) {
  if (args.rows == 0 || args.W.N == 0) return;
  if (!linear_takes(args.W)) {
    CHECK(args.x_bf16 == nullptr && args.y_bf16 == nullptr && args.next.x == nullptr);
    CHECK(args.deferred.x == nullptr);
    return sm80::run(args, stream);
  }
  CHECK(args.activation == Activation::kIdentity || linear_activates(args));
  CHECK(args.lora == nullptr || joined_floats(*args.lora) > 0);
  if (args.next.x != nullptr) {
    CHECK(args.rows <= kMostRowsOfDeferredNorm && args.W.N % DeferredRmsNorm::kSquares == 0 &&
          !args.swiglu && !args.conv && aligned(args.next.x) && aligned(args.next_norm));
  }
  if (args.x_bf16 != nullptr) {
    CHECK(aligned(args.x_bf16) && args.norm == nullptr);
    return linear_rows(args, {args.x_bf16}, stream);
  }
  if (args.deferred.x != nullptr) {
    CHECK(aligned(args.deferred.x) && args.norm != nullptr);
    return linear_deferred(args, stream);
  }
  const int64_t K = args.W.K;
  const std::span<std::byte> scratch = static_cast<CudaStream&>(stream).scratch();
  // Whole tiles.
  const int most =
      static_cast<int>(scratch.size() / (sizeof(uint16_t) * K + sizeof(float)) / 256) * 256;
  auto* rounded = reinterpret_cast<uint16_t*>(scratch.data());
  auto* scales = reinterpret_cast<float*>(rounded + most * K);
  CHECK(most > 0 && aligned(args.x));
  for (int row = 0; row < args.rows; row += most) {
    const LinearArgs part = rows_of(args, row, std::min(most, args.rows - row));
    round_rows(part, rounded, scales, stream);
    linear_rows(part,
                {.x = rounded, .scales = args.norm == nullptr ? nullptr : scales, .made = true},
                stream);
  }
}

int plain_clusters_at_once(const TilingShape& tiling, int blocks) {
  return clusters_at_once<PlainWeights>(tiling, blocks);
}

// Small matrices are one group, as sm80 has them, and all others another.
void run_group(std::span<const LinearArgs> layers, Stream& stream) {
  std::vector<LinearArgs> small, group;
  for (const LinearArgs& layer : layers) {
    if (!linear_takes(layer.W)) {
      small.push_back(layer);
    } else if (layers.size() > 1 && joins_group(layer)) {
      group.push_back(layer);
    } else {
      run(layer, stream);
    }
  }
  linear_group(group, stream);
  sm80::run_group(small, stream);
}

}  // namespace recurve::cuda::sm90
