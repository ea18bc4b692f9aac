#include "kernels/reference/table.h"

namespace recurve::reference {

void run(const GatherRowsArgs& args, Stream&) {
  const int64_t D = args.D;
  for (int r = 0; r < args.count; ++r) {
    for (int64_t d = 0; d < D; ++d) args.y[r * D + d] = args.x[args.index[r] * D + d];
  }
}

}  // namespace recurve::reference
