#include "model/layers/residual.h"

#include <algorithm>

namespace recurve {
namespace {

size_t count(int rows, int64_t width) {
  return static_cast<size_t>(rows) * static_cast<size_t>(width);
}

// Floats for a norm that is begun: of as many rows as there may be.
size_t begun_floats(const Kernels& kernels, int rows, int64_t D) {
  return static_cast<size_t>(
      BegunNorm::room(std::min(rows, kernels.linear.most_rows_of_begun_norm), D));
}

}  // namespace

size_t Residual::room(const Kernels& kernels, int rows, int64_t D) {
  return Arena::room(count(rows, D)) + Arena::room(begun_floats(kernels, rows, D));
}

Residual::Residual(const Kernels& kernels, Arena& arena, int rows, int64_t D)
    : kernels_(kernels),
      rows_(rows),
      x_(arena.floats(count(rows, D))),
      room_(BegunNorm::in(arena.floats(begun_floats(kernels, rows, D)), rows, D)) {}

LinearArgs Residual::read(const Reader& reader, float eps, LinearArgs args) const {
  args.rows = rows_;
  args.W = reader.W;
  args.x = x_;
  args.norm = reader.norm->data();
  args.norm_eps = eps;
  args.begun = begun_;
  return args;
}

LinearArgs Residual::add(LinearArgs args, const Reader& next) {
  args.rows = rows_;
  args.residual = args.y = x_;
  begun_ = {};
  if (kernels_.linear.begins_norm(args.W, next.W, args.rows)) {
    args.next_norm = next.norm->data();
    args.next = begun_ = room_;
  }
  return args;
}

}  // namespace recurve
