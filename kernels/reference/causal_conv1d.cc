#include "kernels/reference/math.h"
#include "kernels/reference/table.h"

namespace recurve::reference {

void run(const CausalConv1dArgs& args, Stream&) {
  const int64_t D = args.D, past = args.width - 1;
  for (int seq = 0; seq < args.seqs.num_seqs; ++seq) {
    float* states = args.state + args.seqs.slot[seq] * D * past;
    for (int64_t row = args.seqs.begin[seq]; row < args.seqs.begin[seq + 1]; ++row) {
      for (int64_t d = 0; d < D; ++d) {
        const float* w = args.w + d * args.width;
        float* state = states + d * past;
        const float x = args.x[row * args.x_stride + d];
        float sum = args.bias == nullptr ? 0 : args.bias[d];
        for (int64_t j = 0; j < past; ++j) sum += w[j] * state[j];
        sum += w[past] * x;
        args.y[row * D + d] = args.silu ? silu(sum) : sum;
        for (int64_t j = 0; j + 1 < past; ++j) state[j] = state[j + 1];
        state[past - 1] = x;
      }
    }
  }
}

}  // namespace recurve::reference
