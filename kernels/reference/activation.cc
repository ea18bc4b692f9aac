#include "kernels/reference/math.h"
#include "kernels/reference/table.h"

namespace recurve::reference {

void run(const ActivationArgs& args, Stream&) {
  for (int64_t r = 0; r < args.rows; ++r) {
    const float* x = args.x + r * args.x_stride;
    float* y = args.y + r * args.y_stride;
    for (int d = 0; d < args.width; ++d) {
      const float value = args.scale * activate(args.f, x[d]);
      y[d] = value < args.floor ? args.floor : value;
    }
  }
}

}  // namespace recurve::reference
