#include "kernels/reference/math.h"
#include "kernels/reference/table.h"

namespace recurve::reference {

void run(const GlaGateArgs& args, Stream&) {
  const int64_t D = args.W.N, R = args.W.K;
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* low = args.low + row * args.low_stride;
    for (int64_t d = 0; d < D; ++d) {
      float sum = 0;
      for (int64_t r = 0; r < R; ++r) sum += weight_at(args.W, d * R + r) * low[r];
      if (args.bias != nullptr) sum += args.bias[d];
      const float g = log_sigmoid(sum) * args.scale;
      args.g[row * D + d] = g < args.floor ? args.floor : g;
    }
  }
}

}  // namespace recurve::reference
