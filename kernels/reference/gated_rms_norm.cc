#include <cmath>

#include "kernels/reference/math.h"
#include "kernels/reference/table.h"

namespace recurve::reference {
namespace {

// One group of one row: x, z, w, y (D); z and w may be null.
void norm_group(int64_t D, float eps, const float* x, const float* z, const float* w, float* y) {
  float squares = 0;
  for (int64_t d = 0; d < D; ++d) {
    y[d] = z == nullptr ? x[d] : x[d] * silu(z[d]);
    squares += y[d] * y[d];
  }
  const float scale = 1.0f / std::sqrt(squares / static_cast<float>(D) + eps);
  for (int64_t d = 0; d < D; ++d) y[d] = y[d] * scale * (w == nullptr ? 1.0f : w[d]);
}

}  // namespace

void run(const GatedRmsNormArgs& args, Stream&) {
  const int64_t D = args.D / args.G;
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t at = 0; at < args.D; at += D) {
      norm_group(D, args.eps, args.x + r * args.x_stride + at,
                 args.z == nullptr ? nullptr : args.z + r * args.z_stride + at,
                 args.w == nullptr ? nullptr : args.w + at, args.y + r * args.y_stride + at);
    }
  }
}

}  // namespace recurve::reference
