#include "model/layers/residual.h"

#include "kernels/fusion.h"

namespace recurve {
namespace {

size_t count(int rows, int64_t width) {
  return static_cast<size_t>(rows) * static_cast<size_t>(width);
}

}  // namespace

size_t Residual::room(const Kernels& kernels, int rows, int64_t D) {
  return Arena::room(count(rows, D)) + Arena::room(floats_of_norm(kernels, rows, D));
}

Residual::Residual(const Kernels& kernels, Arena& arena, int rows, int64_t D)
    : kernels_(kernels),
      rows_(rows),
      x_(arena.floats(count(rows, D))),
      room_(DeferredRmsNorm::in(arena.floats(floats_of_norm(kernels, rows, D)), rows, D)) {}

LinearArgs Residual::read(const Reader& reader, float eps, LinearArgs args) const {
  args.rows = rows_;
  args.W = reader.W;
  args.x = x_;
  args.norm = reader.norm->data();
  args.norm_eps = eps;
  args.deferred = deferred_;
  return args;
}

LinearArgs Residual::add(LinearArgs args, const Reader& next) {
  args.rows = rows_;
  args.residual = args.y = x_;
  deferred_ = defer_norm(kernels_, args, next.W, next.norm->data(), room_);
  return args;
}

}  // namespace recurve
