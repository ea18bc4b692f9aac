#include <cmath>

#include "kernels/reference/table.h"

namespace recurve::reference {

void run(const LayerNormArgs& args, Stream&) {
  const int64_t D = args.D, size = D / args.G;
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t group = 0; group < args.G; ++group) {
      const int64_t first = group * size;
      const float* x = args.x + r * D + first;
      if (args.sum != nullptr) {
        float* total = args.sum + r * D + first;
        for (int64_t d = 0; d < size; ++d) total[d] += x[d];
        x = total;
      }
      float sum = 0;
      for (int64_t d = 0; d < size; ++d) sum += x[d];
      const float mean = sum / static_cast<float>(size);
      float squares = 0;
      for (int64_t d = 0; d < size; ++d) squares += (x[d] - mean) * (x[d] - mean);
      const float scale = 1.0f / std::sqrt(squares / static_cast<float>(size) + args.eps);
      for (int64_t d = 0; d < size; ++d) {
        const float bias = args.b == nullptr ? 0 : args.b[first + d];
        const int64_t at = r * D + first + d;
        const float residual = args.residual == nullptr ? 0 : args.residual[at];
        args.y[at] = (x[d] - mean) * scale * args.w[first + d] + bias + residual;
      }
    }
  }
}

}  // namespace recurve::reference
