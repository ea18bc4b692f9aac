#include <cmath>

#include "kernels/reference/math.h"
#include "kernels/reference/table.h"

namespace recurve::reference {

void run(const HeadRmsNormArgs& args, Stream&) {
  const int64_t DV = args.DV;
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t head = 0; head < args.H; ++head) {
      const int64_t at = (r * args.H + head) * DV;
      const float* x = args.x + args.x_at(r, head);
      float sum = 0;
      for (int64_t d = 0; d < DV; ++d) sum += x[d] * x[d];
      const float scale = 1.0f / std::sqrt(sum / static_cast<float>(DV) + args.eps);
      for (int64_t d = 0; d < DV; ++d) {
        float y = x[d] * scale;
        if (args.w != nullptr) y *= args.w[d];
        if (args.gate != nullptr) {
          const float gate = args.gate[r * args.gate_stride + head * DV + d];
          y *= sigmoid(gate) * (args.f == Activation::kSigmoid ? 1 : gate);
        }
        args.y[at + d] = y;
      }
    }
  }
}

}  // namespace recurve::reference
