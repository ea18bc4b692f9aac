#include "kernels/reference/table.h"

namespace recurve::reference {

void run(const AddArgs& args, Stream&) {
  for (int64_t j = 0; j < args.count; ++j) args.y[j] = args.a[j] + args.b[j];
}

}  // namespace recurve::reference
