#pragma once
#include "kernels/cuda/common/math.cuh"
#include "kernels/ops/activation.h"

namespace recurve::cuda::sm80 {

__device__ inline float silu(float x) { return x * sigmoid(x); }

// log(1 + exp(x)); from 20 on that is x in fp32.
__device__ inline float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

__device__ inline float activate(Activation f, float x) {
  switch (f) {
    case Activation::kIdentity:
      return x;
    case Activation::kSilu:
      return silu(x);
    case Activation::kSigmoid:
      return sigmoid(x);
    case Activation::kLogSigmoid:
      return log_sigmoid(x);
    case Activation::kTanh:
      return tanhf(x);
    case Activation::kRelu:
      return x < 0 ? 0 : x;
    case Activation::kEluPlusOne:
      return x > 0 ? x + 1 : expf(x);
    case Activation::kGelu:
      return 0.5f * x * erfcf(-x * 0.70710678f);
    case Activation::kSquaredRelu:
      return x < 0 ? 0 : x * x;
    case Activation::kGeluTanh:
      return x * sigmoid(x * (1.5957691f + 0.071354816f * x * x));
  }
  return x;
}

// Those that a linear layer's kernel may end with (capabilities.h).
__device__ inline float activate_output(Activation f, float x) {
  switch (f) {
    case Activation::kSigmoid:
      return activate(Activation::kSigmoid, x);
    case Activation::kTanh:
      return activate(Activation::kTanh, x);
    case Activation::kSquaredRelu:
      return activate(Activation::kSquaredRelu, x);
    default:
      return x;
  }
}

}  // namespace recurve::cuda::sm80
