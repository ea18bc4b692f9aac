#include "kernels/reference/math.h"
#include "kernels/reference/table.h"

namespace recurve::reference {

void linear(const LinearArgs& args, Stream&) {
  const int64_t N = args.W.N, K = args.W.K;
  for (int r = 0; r < args.rows; ++r) {
    const float* x = args.x + r * K;
    for (int64_t n = 0; n < N; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < K; ++k) sum += x[k] * weight_at(args.W, n * K + k);
      if (args.bias != nullptr) sum += args.bias[n];
      if (args.residual != nullptr) sum += args.residual[r * N + n];
      args.y[r * N + n] = sum;
    }
  }
}

}  // namespace recurve::reference
