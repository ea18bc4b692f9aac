#include "kernels/reference/table.h"

namespace recurve::reference {

void run(const LinearRecurrenceArgs& args, Stream&) {
  const int64_t D = args.D;
  for (int seq = 0; seq < args.seqs.num_seqs; ++seq) {
    float* state = args.state + args.seqs.slot[seq] * D;
    for (int64_t row = args.seqs.begin[seq]; row < args.seqs.begin[seq + 1]; ++row) {
      for (int64_t d = 0; d < D; ++d) {
        state[d] = args.c[row * args.c_stride + d] * state[d] + args.x[row * args.x_stride + d];
        args.y[row * D + d] = state[d];
      }
    }
  }
}

}  // namespace recurve::reference
