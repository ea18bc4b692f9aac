#include <cmath>

#include "kernels/reference/math.h"
#include "kernels/reference/table.h"

namespace recurve::reference {
namespace {

void norm(const DeltaGateArgs& args, float* x) {
  float sum = 0;
  for (int c = 0; c < args.DK; ++c) sum += args.norm == DeltaNorm::kSum ? x[c] : x[c] * x[c];
  const float divisor = args.norm == DeltaNorm::kSum ? sum : std::sqrt(sum + args.eps);
  for (int c = 0; c < args.DK; ++c) x[c] /= divisor;
}

}  // namespace

void run(const DeltaGateArgs& args, Stream&) {
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t head = 0; head < args.HK; ++head) {
      norm(args, args.q + row * args.qk_stride + head * args.DK);
      norm(args, args.k + row * args.qk_stride + head * args.DK);
    }
    for (int64_t head = 0; head < args.H; ++head) {
      const float part = args.b == nullptr ? 1 : sigmoid(args.b[row * args.b_stride + head]);
      args.beta[row * args.H + head] = args.beta_scale * part;
      for (int64_t c = head * args.decays; c < (head + 1) * args.decays; ++c) {
        args.g[row * args.H * args.decays + c] =
            args.A[head] * softplus(args.a[row * args.a_stride + c] + args.dt_bias[c]);
      }
    }
  }
}

}  // namespace recurve::reference
