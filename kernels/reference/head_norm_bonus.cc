#include <cmath>

#include "kernels/reference/table.h"

namespace recurve::reference {

void run(const HeadNormBonusArgs& args, Stream&) {
  const int64_t N = args.N, D = args.H * N;
  for (int64_t head = 0; head < int64_t{args.rows} * args.H; ++head) {
    const int64_t first = head * N, channel = first % D;
    float sum = 0, squares = 0, bonus = 0;
    for (int64_t c = 0; c < N; ++c) sum += args.o[first + c];
    const float mean = sum / static_cast<float>(N);
    for (int64_t c = 0; c < N; ++c) {
      const float centred = args.o[first + c] - mean;
      squares += centred * centred;
      bonus += args.r[first + c] * args.k[first + c] * args.r_k[channel + c];
    }
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(N) + args.eps);
    for (int64_t at = first, d = channel; at < first + N; ++at, ++d) {
      const float normed = (args.o[at] - mean) * scale * args.w[d] + args.b[d];
      args.y[at] = (normed + bonus * args.v[at]) * args.g[at];
    }
  }
}

}  // namespace recurve::reference
