#pragma once
#include <cmath>
#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/check.h"
#include "kernels/ops/activation.h"
#include "kernels/tensor.h"

namespace recurve::reference {

// Element `index` of the row-major matrix.
inline float weight_at(const Matrix& matrix, int64_t index) {
  if (matrix.dtype == DType::kBF16) {
    return bf16_to_f32(static_cast<const uint16_t*>(matrix.data)[index]);
  }
  CHECK(matrix.dtype == DType::kF32);
  return static_cast<const float*>(matrix.data)[index];
}

inline float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

inline float silu(float x) { return x * sigmoid(x); }

// log(1 + exp(x)); from 20 on that is x in fp32.
inline float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// log(sigmoid(x)); the argument of exp is never positive.
inline float log_sigmoid(float x) {
  return std::fmin(x, 0.0f) - std::log1p(std::exp(-std::fabs(x)));
}

inline float soft_cap(float x, float cap) { return cap * std::tanh(x / cap); }

inline float activate(Activation f, float x) {
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
    case Activation::kSquaredRelu:
      return x < 0 ? 0 : x * x;
    case Activation::kGeluTanh:
      return x * sigmoid(x * (1.5957691f + 0.071354816f * x * x));
  }
  CHECK(false);
}

}  // namespace recurve::reference
