#include <algorithm>

#include "kernels/reference/table.h"

namespace recurve::reference {

void run(const TokenShiftArgs& args, Stream&) {
  const int64_t D = args.D;
  for (int seq = 0; seq < args.seqs.num_seqs; ++seq) {
    float* state = args.state + args.seqs.slot[seq] * D;
    for (int64_t row = args.seqs.begin[seq]; row < args.seqs.begin[seq + 1]; ++row) {
      const float* x = args.x + row * args.x_stride;
      for (int i = 0; i < args.n; ++i) {
        float* y = args.y[i] + row * D;
        for (int64_t d = 0; d < D; ++d) y[d] = x[d] + (state[d] - x[d]) * args.mu[i][d];
      }
      std::copy_n(x, D, state);
    }
  }
}

}  // namespace recurve::reference
