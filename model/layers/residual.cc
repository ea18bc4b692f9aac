#include "model/layers/residual.h"

#include "kernels/fusion.h"

namespace recurve {
namespace {

size_t count(int rows, int64_t width) {
  return static_cast<size_t>(rows) * static_cast<size_t>(width);
}

}  // namespace

size_t Residual::bytes_for(const Kernels& kernels, int rows, int64_t D, bool branches) {
  return Arena::bytes_for(count(rows, D)) + Arena::bytes_for(floats_of_norm(kernels, rows, D)) +
         (branches ? Arena::bytes_for(count(rows, D)) : 0);
}

Residual::Residual(const Kernels& kernels, Arena& arena, int rows, int64_t D, bool branches)
    : kernels_(kernels),
      rows_(rows),
      x_(arena.floats(count(rows, D))),
      sum_(branches ? arena.floats(count(rows, D)) : nullptr),
      deferred_memory_(
          DeferredRmsNorm::in(arena.floats(floats_of_norm(kernels, rows, D)), rows, D)) {}

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
  args.residual = from_;
  args.y = to_;
  from_ = to_;
  to_ = x_;
  if (from_ != x_) {  // the second layer reads x too, but through another norm
    deferred_ = {};
    return args;
  }
  deferred_ = defer_norm(kernels_, args, next.W, next.norm->data(), deferred_memory_);
  return args;
}

}  // namespace recurve
