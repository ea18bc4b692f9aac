#include "kernels/reference/math.h"
#include "kernels/reference/table.h"

namespace recurve::reference {

void run(const GluArgs& args, Stream&) {
  const int64_t F = args.F;
  for (int64_t r = 0; r < args.rows; ++r) {
    const float* gate = args.gate_up + r * 2 * F;
    const float* up = gate + F;
    for (int64_t f = 0; f < F; ++f) args.y[r * F + f] = activate(args.f, gate[f]) * up[f];
  }
}

}  // namespace recurve::reference
