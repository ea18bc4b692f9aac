#include <algorithm>
#include <array>
#include <atomic>

#include "kernels/check.h"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/causal_conv1d.h"
#include "kernels/cuda/sm80/linear_bf16.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm90/linear_kernel.cuh"
#include "kernels/cuda/sm90/linear_persistent.h"
#include "kernels/cuda/sm90/linear_plan.h"
#include "kernels/cuda/sm90/ops.h"
#include "kernels/cuda/sm90/tensor_map.h"

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
      if (i >= fours) break;  // as the thread beside it, which has the other half of eight
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

// The memory of each of so many blocks on one multiprocessor, which takes 1 KB of each for itself.
constexpr int kMemoryOfAll = 228 << 10;
template <typename T>
constexpr int kMemory = kMemoryOfAll / T::kBlocks - (1 << 10);
// What a block takes of it: of few rows it leaves room for one of the three blocks of the next
// layer, whose weights then come while this one ends.
template <typename T>
constexpr int kTaken = kMemory<T> - (T::kBlocks == 1 && kPaced<T> ? kMemoryOfAll / 3 : 0);

template <typename T>
void allow_memory() {
  abort_if_failed(cudaFuncSetAttribute(linear_kernel<T>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, kMemory<T>),
                  "linear, shared memory");
}

// The kernel's template arguments of a tiling.
template <TilingShape kShape>
using TilingOf = std::conditional_t<kShape.wide, WideTiling<kShape.tile_m, kShape.rows>,
                                    Tiling<kShape.tile_m / kGroupM, kShape.rows, kShape.blocks>>;

// Calls f(T()) for the tiling of this shape.
template <typename F>
void with_tiling(const TilingShape& shape, F f) {
  const auto call_if = [&]<size_t i>() {
    const bool same = shape == kTilings[i];
    if (same) f(TilingOf<kTilings[i]>());
    return same;
  };
  const bool known = [&]<size_t... i>(std::index_sequence<i...>) {
    return (call_if.template operator()<i>() || ...);
  }
  (std::make_index_sequence<kTilings.size()>());
  CHECK(known);
}

template <typename T>
int ask_for_clusters_at_once(int blocks) {
  allow_memory<T>();
  keep_carveout(reinterpret_cast<const void*>(linear_kernel<T>), "linear");
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(T::kThreads);
  config.dynamicSmemBytes = kMemory<T>;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  abort_if_failed(cudaOccupancyMaxActiveClusters(&clusters, linear_kernel<T>, &config),
                  "linear, room for clusters");
  CHECK(clusters > 0);
  return clusters;
}

// What GpuRoom asks for. The driver is asked once for each tiling and size.
int clusters_at_once(const TilingShape& tiling, int blocks) {
  static std::array<std::array<std::atomic<int>, kMostPieces + 1>, kTilings.size()> known;  // or 0
  const auto at = std::find(kTilings.begin(), kTilings.end(), tiling) - kTilings.begin();
  std::atomic<int>& clusters = known.at(at).at(blocks);
  if (clusters == 0) {
    with_tiling(tiling, [&]<typename T>(T) { clusters = ask_for_clusters_at_once<T>(blocks); });
  }
  return clusters;
}

// Bytes of weights that all paced blocks together ask for at once as they begin. Memory is busy
// with these, and behind more what the kernels before still read and write would stand in line.
// Where blocks hurry in the end, fewer do.
constexpr int64_t kUnderWay = 9270 << 10, kUnderWayAtFirst = 6200 << 10;

// Whether the kernel after this one may begin at once. What it loads ahead stands in line before
// the rest of W, and what kernels before still load; of one row there is no rest where the GPU's
// shared memory has room for all of W.
bool lets_next_start(const LinearArgs& args, Stream& stream) {
  const int64_t room = int64_t{static_cast<CudaStream&>(stream).multiprocessors()} * kMemoryOfAll;
  return args.rows == 1 && args.W.N * args.W.K * static_cast<int64_t>(sizeof(uint16_t)) <= room;
}

template <typename T>
void launch_linear(const LinearArgs& args, const Rows& x, const TileConfig& config,
                   Stream& stream) {
  const int boxes = ceil_div(args.W.K, kBoxK);
  LinearParams params{
      .rows = args.rows,
      .outputs = static_cast<int>(args.outputs()),
      .stages = 0,
      .box_rows = config.box_rows,
      .tile_step = outputs_of_tile(args, config.box_rows),
      .box_offset = args.swiglu ? static_cast<int>(args.W.N / 2) : config.box_rows,
      .x_rows = T::kWide ? ceil_div(ceil_div(args.rows, config.tiles_of_rows), 8) * 8
                         : ceil_div(args.rows, config.tiles_of_rows),
      .boxes = boxes,
      .piece_boxes = ceil_div(boxes, config.turns * config.parts),
      .turns = config.turns,
      .parts = config.parts,
      .sharers = config.sharers,
      .swiglu = args.swiglu,
      .vector = args.outputs() % 4 == 0 && aligned(args.y) && aligned(args.y_bf16) &&
                aligned(args.bias) && aligned(args.residual),
      .soft_cap = args.soft_cap,
      .K = static_cast<int>(args.W.K),
      .norm_eps = args.norm_eps,
      .scales = x.scales,
      .squares = x.squares,
      .found = x.found,
      .bias = args.bias,
      .residual = args.residual,
      .y = args.y,
      .y_bf16 = args.y_bf16,
      .conv = args.conv.value_or(CausalConv1dArgs{}),
      .conv_first = args.conv ? static_cast<int>(args.conv->x - args.y) : 0,
      .next_norm = args.next_norm,
      .next = args.next,
      .lets_next_start = lets_next_start(args, stream),
      .under_way = 0,
      .hurries = args.rows == 1,
      .first_boxes = 0};
  params.stages = std::clamp(ceil_div(boxes, config.parts), 2, kMostStages);
  while (Shared<T>::bytes(params) > kTaken<T>) --params.stages;
  if constexpr (kPaced<T>) {
    const int at_once = std::min(
        config.blocks(), clusters_at_once(config.tiling, config.cluster()) * config.cluster());
    const int64_t under_way = params.hurries ? kUnderWayAtFirst : kUnderWay;
    params.under_way = std::max(1, static_cast<int>(under_way / at_once / params.W_bytes()));
    if (args.W.K % kBoxK == 0) {
      params.first_boxes = std::min(params.stages, params.piece_boxes * params.turns);
    }
  }
  CHECK(params.turns <= T::kMostTurns && params.stages > 1 && 2 * params.box_rows <= T::kTileM);
  allow_memory<T>();
  const Matrix rows{.dtype = DType::kBF16, .N = args.rows, .K = args.W.K, .data = x.x};
  launch_early(
      stream, "linear", linear_kernel<T>,
      {.grid = dim3(config.tiles * config.cluster(), config.tiles_of_rows / config.sharers),
       .threads = T::kThreads,
       .shared = static_cast<size_t>(Shared<T>::bytes(params)),
       .cluster = static_cast<unsigned>(config.cluster())},
      tensor_map(args.W, T::kWide || args.swiglu ? config.box_rows : 2 * config.box_rows),
      tensor_map(rows, params.x_rows),
      params.first_boxes > 0 ? tensor_map(rows, params.x_rows, params.first_boxes) : CUtensorMap(),
      params);
}

void linear_rows(const LinearArgs& args, const Rows& x, Stream& stream) {
  const LinearPlan plan =
      plan_linear(args, {.multiprocessors = static_cast<CudaStream&>(stream).multiprocessors(),
                         .clusters_at_once = clusters_at_once});
  if (plan.persistent) return launch_persistent(*plan.persistent, args, x, stream);
  with_tiling(plan.tiles.tiling,
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
  linear_rows(args, {.x = deferred.x, .scales = deferred.scales}, stream);
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
    linear_rows(part, {.x = rounded, .scales = args.norm == nullptr ? nullptr : scales}, stream);
  }
}

}  // namespace recurve::cuda::sm90
