#include "kernels/reference/math.h"
#include "kernels/reference/table.h"

namespace recurve::reference {

void run(const EmbedArgs& args, Stream&) {
  const int64_t D = args.E.K;
  for (int r = 0; r < args.rows; ++r) {
    for (int64_t d = 0; d < D; ++d) {
      args.x[r * D + d] = weight_at(args.E, args.token[r] * D + d);
    }
  }
}

}  // namespace recurve::reference
