#include "kernels/reference/math.h"
#include "kernels/reference/table.h"

namespace recurve::reference {

void run(const SoftCapArgs& args, Stream&) {
  for (int64_t j = 0; j < args.count; ++j) args.x[j] = soft_cap(args.x[j], args.cap);
}

}  // namespace recurve::reference
