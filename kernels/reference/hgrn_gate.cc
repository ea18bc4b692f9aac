#include <cmath>

#include "kernels/reference/math.h"
#include "kernels/reference/table.h"

namespace recurve::reference {

void run(const HgrnGateArgs& args, Stream&) {
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t d = 0; d < args.D; ++d) {
      const float f = args.f[r * args.f_stride + d];
      const float b = args.bound == nullptr ? 0 : args.bound[d];
      const float k = (1 - b) * sigmoid(-f);
      args.k[r * args.D + d] = k;
      float& g = args.g[r * args.D + d];
      if (b == 0) {
        g = log_sigmoid(f);
      } else {
        g = f > 0 ? std::log1p(-k) : std::log(b + (1 - b) * sigmoid(f));
      }
    }
  }
}

}  // namespace recurve::reference
