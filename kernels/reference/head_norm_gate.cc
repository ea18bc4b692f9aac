#include <cmath>

#include "kernels/reference/math.h"
#include "kernels/reference/table.h"

namespace recurve::reference {
namespace {

// One head of one row: h, o, w, y (DV).
void norm_head(int DV, float eps, const float* h, const float* o, const float* w, float* y) {
  float sum = 0;
  for (int d = 0; d < DV; ++d) sum += h[d];
  const float mean = sum / static_cast<float>(DV);
  float squares = 0;
  for (int d = 0; d < DV; ++d) squares += (h[d] - mean) * (h[d] - mean);
  const float scale = 1.0f / std::sqrt(squares / static_cast<float>(DV) + eps);
  for (int d = 0; d < DV; ++d) y[d] = sigmoid(o[d]) * ((h[d] - mean) * scale * w[d]);
}

}  // namespace

void run(const HeadNormGateArgs& args, Stream&) {
  const int64_t DV = args.DV;
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t head = 0; head < args.H; ++head) {
      const int64_t at = (r * args.H + head) * DV;
      norm_head(args.DV, args.eps, args.h + at, args.o + r * args.o_stride + head * DV,
                args.w + head * DV, args.y + at);
    }
  }
}

}  // namespace recurve::reference
