#pragma once
#include <cstdint>

#include "kernels/ops/op.h"

namespace recurve {

enum class Activation {
  kIdentity,
  kSilu,        // x sigmoid(x)
  kSigmoid,     // 1 / (1 + exp(-x))
  kLogSigmoid,  // -log(1 + exp(-x)), exact for any x
  kTanh,
  kRelu,         // max(x, 0)
  kEluPlusOne,   // x > 0 ? x + 1 : exp(x)
  kGelu,         // x Phi(x), with the error function
  kSquaredRelu,  // max(x, 0)^2
  // 0.5 x (1 + tanh(z)) = x sigmoid(2 z), with z = sqrt(2 / pi) (x + 0.044715 x^3)
  kGeluTanh,
};

// y = scale f(x), value by value; with a floor under it where one is given.
struct ActivationArgs {
  int rows;
  int width;
  Activation f;
  float scale;
  float floor;     // y is at least this; -infinity: no floor
  int x_stride;    // floats from a row of x to the next
  int y_stride;    // floats from a row of y to the next
  const float* x;  // (rows, width)
  float* y;        // (rows, width); may be x, with the same stride
  // (rows, width), dense, instead of y, or null; where this backend's linear op takes bf16
  uint16_t* y_bf16 = nullptr;
};

struct ActivationKernel {
  static constexpr const char* kName = "activation";
  Op<ActivationArgs> activation;
  static constexpr auto kOp = &ActivationKernel::activation;
};

}  // namespace recurve
