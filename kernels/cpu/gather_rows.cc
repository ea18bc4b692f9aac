#include <cstring>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"

namespace recurve::cpu {

void run(const GatherRowsArgs& args, Stream& stream) {
  const int64_t D = args.D;
  for_blocks(pool_of(stream), args.count, D, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      std::memcpy(args.y + r * D, args.x + args.index[r] * D, D * sizeof(float));
    }
  });
}

}  // namespace recurve::cpu
