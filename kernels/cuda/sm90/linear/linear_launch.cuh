#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <span>

#include "kernels/check.h"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/linear/lora_tables.h"
#include "kernels/cuda/sm90/linear/linear_kernel.cuh"
#include "kernels/cuda/sm90/linear/linear_persistent.h"
#include "kernels/cuda/sm90/linear/linear_plan.h"
#include "kernels/cuda/sm90/tensor_map.h"
#include "kernels/weight_format.h"

// How the kernel of linear_kernel.cuh is launched, for whatever it is compiled for.
namespace recurve::cuda::sm90 {

// The memory of each of so many blocks on one multiprocessor, which takes 1 KB of each for itself.
constexpr int kMemoryOfAll = 228 << 10;
template <typename T>
constexpr int kMemory = kMemoryOfAll / T::kBlocks - (1 << 10);
// What a block takes of it: of few rows it leaves memory for one of the three blocks of the next
// layer, whose weights then come while this one ends.
template <typename T>
constexpr int kTaken = kMemory<T> - (T::kBlocks == 1 && kPaced<T> ? kMemoryOfAll / 3 : 0);

template <typename T>
void allow_memory(const void* kernel) {
  abort_if_failed(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMemory<T>),
      "linear, shared memory");
}

// The kernel's template arguments of a tiling.
template <TilingShape kShape, typename Weights>
using TilingOf =
    std::conditional_t<kShape.wide, WideTiling<kShape.tile_m, kShape.rows>,
                       Tiling<kShape.tile_m / kGroupM, kShape.rows, kShape.blocks, Weights>>;

// Whether a tiling is compiled for these weights.
template <typename Weights>
constexpr bool compiled(const TilingShape& shape) {
  return Weights::kHeld ? takes_packed(shape) : takes_plain(shape);
}

// Calls f(T()) for the tiling of this shape.
template <typename Weights, typename F>
void with_tiling(const TilingShape& shape, F f) {
  const auto call_if = [&]<size_t i>() {
    if constexpr (compiled<Weights>(kTilings[i])) {
      const bool same = shape == kTilings[i];
      if (same) f(TilingOf<kTilings[i], Weights>());
      return same;
    }
    return false;
  };
  const bool known = [&]<size_t... i>(std::index_sequence<i...>) {
    return (call_if.template operator()<i>() || ...);
  }(std::make_index_sequence<kTilings.size()>());
  CHECK(known);
}

template <typename T>
int ask_for_clusters_at_once(int blocks) {
  const auto* const kernel = reinterpret_cast<const void*>(linear_kernel<T>);
  allow_memory<T>(kernel);
  keep_carveout(kernel, "linear");
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
                  "linear, clusters at once");
  CHECK(clusters > 0);
  return clusters;
}

// What GpuRoom asks for. The driver is asked once for each tiling and size.
template <typename Weights>
int clusters_at_once(const TilingShape& tiling, int blocks) {
  static std::array<std::array<std::atomic<int>, kMostPieces + 1>, kTilings.size()> known;  // or 0
  const auto at = std::find(kTilings.begin(), kTilings.end(), tiling) - kTilings.begin();
  std::atomic<int>& clusters = known.at(at).at(blocks);
  if (clusters == 0) {
    with_tiling<Weights>(tiling,
                         [&]<typename T>(T) { clusters = ask_for_clusters_at_once<T>(blocks); });
  }
  return clusters;
}

// Bytes of weights that all paced blocks together ask for at once as they begin. Memory is busy
// with these, and behind more what the kernels before still read and write would stand in line.
// Where blocks hurry in the end, fewer do.
constexpr int64_t kUnderWay = 9270 << 10, kUnderWayAtFirst = 6200 << 10;

// Whether the kernel after this one may begin at once. What it loads ahead stands in line before
// the rest of W, and what kernels before still load; of one row there is no rest where all of W
// fits shared memory. Never before LoraArgs::ready has been read.
inline bool lets_next_start(std::span<const LinearArgs> layers, Stream& stream) {
  const auto has_lora = [](const LinearArgs& layer) { return layer.lora != nullptr; };
  if (layers[0].W.format != nullptr || std::ranges::any_of(layers, has_lora)) return false;
  const int64_t memory = int64_t{static_cast<CudaStream&>(stream).multiprocessors()} * kMemoryOfAll;
  int64_t bytes = 0;
  for (const LinearArgs& layer : layers) {
    bytes += layer.W.N * format_of(layer.W).row_bytes(layer.W.K);
  }
  return layers[0].rows == 1 && bytes <= memory;
}

inline CUtensorMap map_of_weights(const Matrix& W, int box_rows, int span) {
  return W.format == nullptr ? tensor_map(W, box_rows) : packed_tensor_map(W, box_rows, span);
}

inline JoinedLora lora_of(const LinearArgs& args, const Rows& x) {
  if (args.lora == nullptr) return {};
  const sm80::lora::Joined joined(*args.lora);
  uint64_t rows = 0;
  for (const LoraRows& group : args.lora->groups) {
    if (args.lora->parts_of(group).empty()) continue;
    for (const int32_t row : group.rows) rows |= uint64_t{1} << row;
  }
  const auto* const table = reinterpret_cast<const std::byte*>(args.lora->inner);
  return {.table = table,
          .table_bytes = static_cast<int>(joined.table_bytes()),
          .parts = static_cast<int>(joined.parts),
          .tiles = static_cast<int>(joined.tiles),
          .stride = static_cast<int>(args.lora->inner_floats()),
          .inner = reinterpret_cast<const float*>(table + joined.table_bytes()),
          .rows = rows,
          .ready = x.made ? nullptr : args.lora->ready};
}

// What the highest tiles of a tiling take at least, with two stages.
template <typename T>
constexpr int least_bytes() {
  LinearParams params{};
  params.stages = 2;
  params.box_rows = T::kTileM / 2;
  params.span = T::kSpan;
  params.W_row_bytes = T::kSpan * T::Weights::kRowBytes;
  params.x_rows = T::kRows;
  if constexpr (kByWarps<T>) params.scale_bytes = scale_bytes<T>(kScaledBoxes);
  return Shared<T>::bytes(params);
}

// at_once: blocks of the launch that run at once.
template <typename T>
LinearParams params_of(const LinearArgs& args, const Rows& x, const TileConfig& config, int at_once,
                       bool lets_next_start) {
  static_assert(least_bytes<T>() <= kTaken<T>);
  const int boxes = ceil_div(args.W.K, kBoxK);
  LinearParams params{
      .rows = args.rows,
      .outputs = static_cast<int>(args.outputs()),
      .stages = 0,
      .box_rows = config.box_rows,
      .span = T::kSpan,
      .W_row_bytes = T::kSpan * T::Weights::kRowBytes,
      .tile_step = outputs_of_tile(args, config.box_rows),
      .box_offset = args.swiglu ? static_cast<int>(args.W.N / 2) : config.box_rows,
      .x_rows = kByWarps<T> ? T::kRows
                : T::kWide  ? ceil_div(ceil_div(args.rows, config.tiles_of_rows), 8) * 8
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
      .W_scales = args.W.scales,
      .W_rows = static_cast<int>(args.W.N),
      .scale_bytes = 0,
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
      .lets_next_start = lets_next_start,
      .under_way = 0,
      .hurries = args.rows == 1,
      .first_boxes = 0,
      .activation = args.activation,
      .lora = lora_of(args, x)};
  if constexpr (kByWarps<T>) {
    params.scale_bytes = scale_bytes<T>(params.piece_boxes * params.turns);
  }
  params.stages = std::clamp(ceil_div(ceil_div(boxes, config.parts), T::kSpan), 2, kMostStages);
  while (Shared<T>::bytes(params) > kTaken<T>) --params.stages;
  if constexpr (kPaced<T>) {
    const int64_t under_way = params.hurries ? kUnderWayAtFirst : kUnderWay;
    params.under_way = std::max(1, static_cast<int>(under_way / at_once / params.W_bytes()));
    if (args.W.K % kBoxK == 0) {
      params.first_boxes = std::min(params.stages * T::kSpan, params.piece_boxes * params.turns);
    }
  }
  CHECK(params.turns <= T::kMostTurns && params.stages > 1 && 2 * params.box_rows <= T::kTileM);
  return params;
}

// What brings the boxes of a layer.
struct LayerMaps {
  CUtensorMap W, x, first_x;
};
template <typename T>
LayerMaps maps_of(const LinearArgs& args, const Rows& x, const LinearParams& params) {
  const Matrix rows{.dtype = DType::kBF16, .N = args.rows, .K = args.W.K, .data = x.x};
  const int box_rows = params.box_rows;
  return {
      map_of_weights(args.W, T::kWide || args.swiglu ? box_rows : 2 * box_rows, T::kSpan),
      kByWarps<T> && params.first_boxes > 0 ? tensor_map(rows, params.x_rows, params.span)
                                            : tensor_map(rows, params.x_rows),
      params.first_boxes > 0 ? tensor_map(rows, params.x_rows, params.first_boxes) : CUtensorMap()};
}

template <typename T>
void launch_linear(const LinearArgs& args, const Rows& x, const TileConfig& config,
                   Stream& stream) {
  const int clusters = clusters_at_once<typename T::Weights>(config.tiling, config.cluster());
  const LinearParams params =
      params_of<T>(args, x, config, std::min(config.clusters(), clusters) * config.cluster(),
                   lets_next_start({{args}}, stream));
  const LayerMaps maps = maps_of<T>(args, x, params);
  auto* kernel = linear_kernel<T>;
  if constexpr (!T::kWide) {
    if (args.activation != Activation::kIdentity) kernel = linear_kernel<T, Ends::kActivation>;
  }
  if constexpr (kTakesAdapters<T>) {
    if (args.lora != nullptr) kernel = linear_kernel<T, Ends::kActivationOrAdapters>;
  }
  allow_memory<T>(reinterpret_cast<const void*>(kernel));
  launch_early(
      stream, "linear", kernel,
      {.grid = dim3(config.tiles * config.cluster(), config.tiles_of_rows / config.sharers),
       .threads = T::kThreads,
       .shared = static_cast<size_t>(Shared<T>::bytes(params)),
       .cluster = static_cast<unsigned>(config.cluster())},
      maps.W, maps.x, maps.first_x, params);
}

// Unpacks a matrix to bf16, (N, K): so many rows a block, side by side. K is a multiple of 8.
constexpr int kUnpackThreads = 256, kUnpackRows = 4;
template <typename Weights>
__global__ void __launch_bounds__(kUnpackThreads)
    unpack_kernel(const std::byte* W, const typename Weights::Scale* scales, int N, int K,
                  uint16_t* to) {
  let_next_start();
  const int groups = (K + kBoxK - 1) / kBoxK, first = static_cast<int>(blockIdx.x) * kUnpackRows;
  bool waited = false;
  for (int column = static_cast<int>(threadIdx.x) * 8; column < K; column += kUnpackThreads * 8) {
    uint4 values[kUnpackRows];
#pragma unroll
    for (int i = 0; i < kUnpackRows; ++i) {
      const int64_t row = min(first + i, N - 1);
      values[i] = Weights::eight_values(W + row * groups * Weights::kRowBytes, column,
                                        __ldg(scales + row * groups + column / kBoxK));
    }
    if (!waited) wait_for_previous();
    waited = true;
#pragma unroll
    for (int i = 0; i < kUnpackRows; ++i) {
      if (first + i >= N) break;
      *reinterpret_cast<uint4*>(to + int64_t{first + i} * K + column) = values[i];
    }
  }
  if (!waited) wait_for_previous();
}

// Launches the layer of packed weights as it is planned.
template <typename Weights>
void launch_planned(const LinearArgs& args, const Rows& x, Stream& stream) {
  auto& device = static_cast<CudaStream&>(stream);
  const int multiprocessors = device.multiprocessors();
  if (const auto plan = plan_unpacked(args, multiprocessors, device.unpacked().size())) {
    LinearArgs unpacked = args;
    unpacked.W = {
        .dtype = DType::kBF16, .N = args.W.N, .K = args.W.K, .data = device.unpacked().data()};
    launch_early(stream, "linear, unpacking", unpack_kernel<Weights>,
                 {.grid = static_cast<unsigned>(ceil_div(args.W.N, int64_t{kUnpackRows})),
                  .threads = kUnpackThreads},
                 static_cast<const std::byte*>(args.W.data),
                 static_cast<const typename Weights::Scale*>(args.W.scales),
                 static_cast<int>(args.W.N), static_cast<int>(args.W.K),
                 reinterpret_cast<uint16_t*>(device.unpacked().data()));
    return launch_persistent(*plan, unpacked, x, true, stream);
  }
  const LinearPlan plan = plan_linear(
      args, {.multiprocessors = multiprocessors, .clusters_at_once = clusters_at_once<Weights>});
  CHECK(!plan.persistent);
  with_tiling<Weights>(plan.tiles.tiling,
                       [&]<typename T>(T) { launch_linear<T>(args, x, plan.tiles, stream); });
}

}  // namespace recurve::cuda::sm90
