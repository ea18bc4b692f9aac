#include "kernels/check.h"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/linear/linear_persistent.cuh"
#include "kernels/cuda/sm90/linear/linear_persistent.h"

namespace recurve::cuda::sm90 {
namespace {

int multiprocessors(Stream& stream) { return static_cast<CudaStream&>(stream).multiprocessors(); }

template <typename T>
PersistentParams params_of(const LinearArgs& args, const Rows& x, int sharers, bool made) {
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
          .made = made,
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
void launch(const LinearArgs& args, const Rows& x, int sharers, bool made, Stream& stream) {
  const PersistentParams params = params_of<T>(args, x, sharers, made);
  const int clusters = std::min(params.tiles(), multiprocessors(stream) / sharers);
  CHECK(params.boxes > (params.pieces - 1) * params.piece_boxes);
  abort_if_failed(cudaFuncSetAttribute(persistent_kernel<T>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, T::kShared),
                  "linear, shared memory");
  const Matrix rows{.dtype = DType::kBF16, .N = args.rows, .K = args.W.K, .data = x.x};
  launch_early(stream, "linear", persistent_kernel<T>,
               {.grid = dim3(clusters * sharers),
                .threads = T::kThreads,
                .shared = T::kShared,
                .cluster = static_cast<unsigned>(sharers)},
               tensor_map(args.W, params.box_rows), tensor_map(rows, T::kRows), params);
}

}  // namespace

void launch_persistent(const PersistentPlan& plan, const LinearArgs& args, const Rows& x, bool made,
                       Stream& stream) {
  const int pieces = pieces_of(args.W);
  if (pieces > 4) {
    return launch<PersistentTiling<kPersistentTileMOfMany, kMostPieces>>(args, x, plan.sharers,
                                                                         made, stream);
  }
  if (pieces > 2)
    return launch<PersistentTiling<kPersistentTileMOfMany, 4>>(args, x, plan.sharers, made, stream);
  const auto launch_if = [&]<int kTileM>() {
    if (plan.tile_m == kTileM)
      launch<PersistentTiling<kTileM, 2>>(args, x, plan.sharers, made, stream);
  };
  [&]<size_t... i>(std::index_sequence<i...>) {
    (launch_if.template operator()<kPersistentTileMs[i]>(), ...);
  }(std::make_index_sequence<kPersistentTileMs.size()>());
}

}  // namespace recurve::cuda::sm90
