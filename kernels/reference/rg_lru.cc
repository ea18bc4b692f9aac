#include <cmath>

#include "kernels/reference/math.h"
#include "kernels/reference/table.h"

namespace recurve::reference {

void run(const RgLruArgs& args, Stream&) {
  const int64_t D = args.D;
  for (int seq = 0; seq < args.seqs.num_seqs; ++seq) {
    float* state = args.h + args.seqs.slot[seq] * D;
    for (int64_t row = args.seqs.begin[seq]; row < args.seqs.begin[seq + 1]; ++row) {
      for (int64_t d = 0; d < D; ++d) {
        const int64_t at = row * D + d;
        const float log_a = args.rate[d] * sigmoid(args.r[at]);
        const float put = sigmoid(args.i[at]) * args.u[at];
        float& h = state[d];
        h = args.position[row] == 0 ? put
                                    : std::exp(log_a) * h + std::sqrt(-std::expm1(2 * log_a)) * put;
        args.y[at] = activate(Activation::kGeluTanh, args.branch[row * args.branch_stride + d]) * h;
      }
    }
  }
}

}  // namespace recurve::reference
