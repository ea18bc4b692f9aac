#include <vector>

#include "kernels/reference/math.h"
#include "kernels/reference/table.h"
#include "kernels/weight_format.h"

namespace recurve::reference {

void run(const ExpertLinearArgs& args, Stream& stream) {
  const int64_t N = args.outputs(), K = args.W.K;
  std::vector<float> z(static_cast<size_t>(N));
  for (int64_t e = 0; e < args.E; ++e) {
    const int64_t first = args.begin == nullptr ? 0 : args.begin[e];
    const int64_t last = args.begin == nullptr ? args.rows : args.begin[e + 1];
    for (int64_t i = first; i < last; ++i) {
      const int64_t p = args.pair == nullptr ? i : args.pair[i], r = p / args.top;
      const bool gated = args.weight == nullptr;
      run(LinearArgs{.rows = 1,
                     .W = rows_of(args.W, e * N, N),
                     .x = args.x + (gated ? r : i) * K,
                     .y = gated ? args.y + i * (N / 2) : z.data(),
                     .swiglu = gated},
          stream);
      for (int64_t n = 0; !gated && n < N; ++n) args.y[r * N + n] += args.weight[p] * z[n];
    }
  }
}

}  // namespace recurve::reference
