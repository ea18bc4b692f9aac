#include "kernels/check.h"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/linear_persistent.cuh"
#include "kernels/cuda/sm90/linear_persistent.h"

namespace recurve::cuda::sm90 {
namespace {

int multiprocessors(Stream& stream) { return static_cast<CudaStream&>(stream).multiprocessors(); }

template <typename T>
PersistentTask task_of(const LinearArgs& args, const Rows& x, int sharers) {
  const int boxes = ceil_div(args.W.K, kBoxK), box_rows = T::kTileM / 2;
  const int tile_step = args.swiglu ? box_rows : T::kTileM;
  return {.box_rows = box_rows,
          .box_offset = args.swiglu ? static_cast<int>(args.W.N / 2) : box_rows,
          .tile_step = tile_step,
          .boxes = boxes,
          .piece_boxes = ceil_div(boxes, pieces_of(args.W)),
          .pieces = pieces_of(args.W),
          .columns = ceil_div(static_cast<int>(args.outputs()), tile_step),
          .row_tiles = ceil_div(args.rows, sharers * T::kRows),
          .band = 8,
          .sharers = sharers,
          .outputs = {.rows = args.rows,
                      .count = static_cast<int>(args.outputs()),
                      .swiglu = args.swiglu,
                      .adds = args.residual != nullptr,
                      .scales = x.scales,
                      .bias = args.bias,
                      .y = args.y,
                      .y_bf16 = args.y_bf16}};
}

template <typename T>
void launch(const LinearArgs& args, const Rows& x, int sharers, Stream& stream) {
  const PersistentTask task = task_of<T>(args, x, sharers);
  const int clusters = std::min(task.tiles(), multiprocessors(stream) / sharers);
  CHECK(task.boxes > (task.pieces - 1) * task.piece_boxes);
  abort_if_failed(cudaFuncSetAttribute(persistent_kernel<T>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, T::kShared),
                  "linear, shared memory");
  const Matrix rows{.dtype = DType::kBF16, .N = args.rows, .K = args.W.K, .data = x.x};
  launch_early(stream, "linear", persistent_kernel<T>,
               {.grid = dim3(clusters * sharers),
                .threads = T::kThreads,
                .shared = T::kShared,
                .cluster = static_cast<unsigned>(sharers)},
               tensor_map(args.W, task.box_rows), tensor_map(rows, T::kRows), task);
}

// Tiles of K in up to two pieces, and of K in more.
constexpr int kTileMs[] = {128, 160, 176, 192};
constexpr int kTileMOfMany = 128;
constexpr int kFewestRows = 257;

// About how long the layer takes, in ns, as measured on an H200.
int64_t time_of(const LinearArgs& args, int tile_m, int sharers, Stream& stream) {
  constexpr double kBegin = 6000, kBox = 2.75, kBoxAlone = 2.9, kPiece = 300, kTile = 1200;
  const int tiles = ceil_div(static_cast<int>(args.outputs()), args.swiglu ? tile_m / 2 : tile_m) *
                    ceil_div(args.rows, sharers * kPersistentRows);
  const int waves = ceil_div(tiles, multiprocessors(stream) / sharers);
  const double box = (sharers > 1 ? kBox : kBoxAlone) * tile_m;
  const double tile = box * ceil_div(args.W.K, kBoxK) + kPiece * pieces_of(args.W) + kTile;
  return static_cast<int64_t>(kBegin + waves * tile);
}

}  // namespace

std::optional<PersistentPlan> plan_persistent(const LinearArgs& args, Stream& stream) {
  const bool adds = args.residual != nullptr;
  if (args.rows < kFewestRows || args.outputs() % 4 != 0 || args.soft_cap != 0 || args.conv ||
      (adds && (args.residual != args.y || args.swiglu || args.y_bf16 != nullptr)) ||
      !aligned(args.y) || !aligned(args.y_bf16) || !aligned(args.bias)) {
    return std::nullopt;
  }
  std::optional<PersistentPlan> best;
  for (const int tile_m : kTileMs) {
    if (args.swiglu && tile_m % kStagedColumns != 0) continue;
    if (pieces_of(args.W) > 2 && tile_m != kTileMOfMany) continue;
    for (const int sharers : {2, 1}) {
      const int64_t time = time_of(args, tile_m, sharers, stream);
      if (!best || time < best->time) best = {tile_m, sharers, time};
    }
  }
  return best;
}

void launch_persistent(const PersistentPlan& plan, const LinearArgs& args, const Rows& x,
                       Stream& stream) {
  const int pieces = pieces_of(args.W);
  if (pieces > 4) {
    return launch<PersistentTiling<kTileMOfMany, kMostPieces>>(args, x, plan.sharers, stream);
  }
  if (pieces > 2) return launch<PersistentTiling<kTileMOfMany, 4>>(args, x, plan.sharers, stream);
  const auto launch_if = [&]<int kTileM>() {
    if (plan.tile_m == kTileM) launch<PersistentTiling<kTileM, 2>>(args, x, plan.sharers, stream);
  };
  [&]<size_t... i>(std::index_sequence<i...>) {
    (launch_if.template operator()<kTileMs[i]>(), ...);
  }
  (std::make_index_sequence<std::size(kTileMs)>());
}

}  // namespace recurve::cuda::sm90
