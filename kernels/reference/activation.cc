#include <algorithm>
#include <cmath>

#include "kernels/reference/math.h"
#include "kernels/reference/table.h"

namespace recurve::reference {
namespace {

float apply(Activation f, float x) {
  switch (f) {
    case Activation::kIdentity:
      return x;
    case Activation::kSilu:
      return x * sigmoid(x);
    case Activation::kSigmoid:
      return sigmoid(x);
    case Activation::kLogSigmoid:
      return log_sigmoid(x);
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kRelu:
      return x < 0 ? 0 : x;
    case Activation::kEluPlusOne:
      return x > 0 ? x + 1 : std::exp(x);
    case Activation::kGelu:
      return 0.5f * x * std::erfc(-x * 0.70710678f);
  }
  CHECK(false);
}

}  // namespace

void activation(const ActivationArgs& args, Stream&) {
  for (int64_t r = 0; r < args.rows; ++r) {
    const float* x = args.x + r * args.x_stride;
    float* y = args.y + r * args.y_stride;
    for (int d = 0; d < args.width; ++d) {
      const float value = args.scale * apply(args.f, x[d]);
      y[d] = value < args.floor ? args.floor : value;
    }
  }
}

}  // namespace recurve::reference
