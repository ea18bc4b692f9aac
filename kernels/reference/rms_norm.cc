#include <cmath>

#include "kernels/reference/table.h"

namespace recurve::reference {

void run(const RmsNormArgs& args, Stream&) {
  const int64_t D = args.D;
  for (int r = 0; r < args.rows; ++r) {
    const float* x = args.x + r * D;
    float* y = args.y + r * D;
    float sum = 0;
    for (int64_t d = 0; d < D; ++d) sum += x[d] * x[d];
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(D) + args.eps);
    for (int64_t d = 0; d < D; ++d) y[d] = x[d] * scale * args.w[d];
  }
}

}  // namespace recurve::reference
