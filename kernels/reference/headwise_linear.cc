#include "kernels/reference/math.h"
#include "kernels/reference/table.h"

namespace recurve::reference {

void run(const HeadwiseLinearArgs& args, Stream&) {
  const int64_t K = args.W.K, N = args.W.N / args.H;
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t n = 0; n < args.W.N; ++n) {
      const float* x = args.x + r * args.x_stride + n / N * K;
      float sum = 0;
      for (int64_t k = 0; k < K; ++k) sum += x[k] * weight_at(args.W, n * K + k);
      args.y[r * args.y_stride + n] = args.bias == nullptr ? sum : sum + args.bias[n];
    }
  }
}

}  // namespace recurve::reference
