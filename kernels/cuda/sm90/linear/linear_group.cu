#include <algorithm>
#include <vector>

#include "kernels/cuda/sm90/linear/linear_group.h"
#include "kernels/cuda/sm90/linear/linear_launch.cuh"

namespace recurve::cuda::sm90 {
namespace {

constexpr int kMostLayers = 8;
struct Group {
  struct Layer {
    LayerMaps maps;
    LinearParams params;
    int first_tile;  // counted through the layers
  };
  Layer layers[kMostLayers];
  int count;
};
static_assert(sizeof(Group) <= 32764, "what a kernel's parameters may take");

template <typename T, Ends kEnds>
__global__ void __maxnreg__((most_registers<T, kEnds>()))
    group_kernel(const __grid_constant__ Group group) {
  const int tile = cluster_number();
  int at = 0;
#pragma unroll
  for (int i = 1; i < kMostLayers; ++i) {
    if (i < group.count && tile >= group.layers[i].first_tile) at = i;
  }
  const Group::Layer& layer = group.layers[at];
  compute_tile<T, kEnds>(layer.maps.W, layer.maps.x, layer.maps.first_x, layer.params,
                         tile - layer.first_tile);
}

template <typename T>
void launch_group(std::span<const LinearArgs> layers, std::span<const TileConfig> configs,
                  Stream& stream) {
  int clusters = 0;
  for (const TileConfig& config : configs) clusters += config.clusters();
  const int cluster = configs[0].cluster();
  const int at_once =
      std::min(clusters, plain_clusters_at_once(configs[0].tiling, cluster)) * cluster;
  const bool starts_next = lets_next_start(layers, stream);
  Group group{};
  size_t shared = 0;
  int tiles = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const Rows x{.x = layers[i].x_bf16};
    Group::Layer& layer = group.layers[group.count++];
    layer.params = params_of<T>(layers[i], x, configs[i], at_once, starts_next);
    layer.maps = maps_of<T>(layers[i], x, layer.params);
    layer.first_tile = tiles;
    tiles += configs[i].tiles;
    shared = std::max(shared, static_cast<size_t>(Shared<T>::bytes(layer.params)));
  }
  const bool adapted =
      std::ranges::any_of(layers, [](const LinearArgs& layer) { return layer.lora != nullptr; });
  auto* const kernel =
      adapted ? group_kernel<T, Ends::kActivationOrAdapters> : group_kernel<T, Ends::kActivation>;
  allow_memory<T>(reinterpret_cast<const void*>(kernel));
  launch_early(stream, "linear, group", kernel,
               {.grid = static_cast<unsigned>(clusters * cluster),
                .threads = T::kThreads,
                .shared = shared,
                .cluster = static_cast<unsigned>(cluster)},
               group);
}

// Those of which K is in as many pieces, at most kMostLayers.
void launch_planned_group(std::span<const LinearArgs> layers, Stream& stream) {
  const std::vector<TileConfig> configs =
      plan_group(layers, {.multiprocessors = static_cast<CudaStream&>(stream).multiprocessors(),
                          .clusters_at_once = plain_clusters_at_once});
  with_tiling<PlainWeights>(configs[0].tiling, [&]<typename T>(T) {
    if constexpr (!T::kWide && T::kRows <= kMostGroupedRows) {
      launch_group<T>(layers, configs, stream);
    } else {
      CHECK(false);
    }
  });
}

}  // namespace

bool joins_group(const LinearArgs& layer) {
  return layer.W.format == nullptr && linear_takes(layer.W) && layer.rows > 0 &&
         layer.rows <= kMostGroupedRows && layer.x_bf16 != nullptr && aligned(layer.x_bf16) &&
         sm80::is_plain(layer);
}

void linear_group(std::span<const LinearArgs> layers, Stream& stream) {
  for (int pieces = 1; pieces <= kMostPieces; pieces *= 2) {
    std::vector<LinearArgs> alike;
    for (const LinearArgs& layer : layers) {
      if (pieces_of(layer.W) == pieces) alike.push_back(layer);
    }
    const std::span<const LinearArgs> all(alike);
    for (size_t first = 0; first < all.size(); first += kMostLayers) {
      launch_planned_group(all.subspan(first, std::min<size_t>(kMostLayers, all.size() - first)),
                           stream);
    }
  }
}

}  // namespace recurve::cuda::sm90
