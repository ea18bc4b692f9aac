#include "kernels/reference/table.h"
#include "kernels/weight_format.h"

namespace recurve::reference {

void run(const EmbedArgs& args, Stream&) {
  for (int r = 0; r < args.rows; ++r) unpack_row(args.E, args.token[r], args.x + r * args.E.K);
}

}  // namespace recurve::reference
