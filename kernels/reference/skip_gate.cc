#include "kernels/reference/math.h"
#include "kernels/reference/table.h"

namespace recurve::reference {

void run(const SkipGateArgs& args, Stream&) {
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t d = 0; d < args.D; ++d) {
      const int64_t at = r * args.D + d;
      const float z = args.z[r * args.z_stride + d];
      const float sum = args.h[at] + args.skip[d] * args.x[r * args.x_stride + d];
      args.y[at] = sum * (z * sigmoid(z));
    }
  }
}

}  // namespace recurve::reference
