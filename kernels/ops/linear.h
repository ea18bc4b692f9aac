#pragma once
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <span>

#include "kernels/ops/activation.h"
#include "kernels/ops/causal_conv1d.h"
#include "kernels/ops/deferred_rms_norm.h"
#include "kernels/ops/glu.h"
#include "kernels/ops/op.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/tensor.h"

namespace recurve {

struct LoraArgs;

// y = cap(gate(W norm(x) + bias)) + residual, accumulated in fp32. Each of the three is left out
// unless asked for:
//   norm(x) = x * rsqrt(mean(x^2) + norm_eps) * norm     as in rms_norm.h
//   gate(z) = silu(first half of z) * second half        as in glu.h
//   cap(z)  = soft_cap tanh(z / soft_cap)
// A row of y depends on its row of x alone: not on how many rows there are, nor on where it stands
// among them. That is what makes a token's result independent of its neighbours in the batch.
// With weights in bf16 a backend may round norm(x) to bf16 too; where LinearOp::takes_bf16 says
// that it does, x may come and y may be left in bf16.
struct LinearArgs {
  int rows;
  Matrix W;                         // (N, K)
  const float* bias = nullptr;      // (N) or null
  const float* residual = nullptr;  // (rows, outputs) or null; may be y
  const float* x = nullptr;         // (rows, K); does not overlap y
  float* y = nullptr;               // (rows, outputs)
  const float* norm = nullptr;      // (K) or null: no norm
  float norm_eps = 0;
  bool swiglu = false;               // outputs = N / 2; else outputs = N
  float soft_cap = 0;                // 0: none; with a residual neither this nor swiglu
  const uint16_t* x_bf16 = nullptr;  // (rows, K) instead of x, or null; without a norm
  uint16_t* y_bf16 = nullptr;        // (rows, outputs) instead of y, or null
  // Where LinearOp::takes_activation says so: y = activation(W x + bias).
  Activation activation = Activation::kIdentity;
  // Where LinearOp::takes_conv says so: a convolution whose x is some of the columns of y. It is
  // done too, and these columns are not left in y.
  std::optional<CausalConv1dArgs> conv = std::nullopt;
  // Where LinearOp::defers_norm says so: the norm (outputs) of the layer that reads y, and what is
  // left for it in addition to y.
  const float* next_norm = nullptr;
  DeferredRmsNorm next = {};
  // Instead of x where LinearOp::takes_deferred_norm says so: what the op before left.
  DeferredRmsNorm deferred = {};
  // What LoraOp::shrink has begun, where LoraOp::joined_floats says that this op ends it: adapters
  // add to W norm(x) + bias + residual, before the gate or activation.
  const LoraArgs* lora = nullptr;

  int64_t outputs() const { return swiglu ? W.N / 2 : W.N; }
  // The norm, if there is one, as an op before the product. to: (rows, K).
  RmsNormArgs norm_into(float* to) const {
    return {.rows = rows, .D = static_cast<int>(W.K), .eps = norm_eps, .x = x, .w = norm, .y = to};
  }
  // The gate as an op behind it. gate_up: (rows, N).
  GluArgs gate_of(const float* gate_up) const {
    return {.rows = rows,
            .F = static_cast<int>(outputs()),
            .f = Activation::kSilu,
            .gate_up = gate_up,
            .y = y};
  }
  // The activation as an op behind it, of what the layer leaves in y in fp32.
  ActivationArgs activation_behind() const {
    const int width = static_cast<int>(outputs());
    return {.rows = rows,
            .width = width,
            .f = activation,
            .scale = 1,
            .floor = -INFINITY,
            .x_stride = width,
            .y_stride = width,
            .x = y,
            .y = y_bf16 == nullptr ? y : nullptr,
            .y_bf16 = y_bf16};
  }
};

struct LinearOp : MatrixOp<LinearArgs> {
  void operator()(const LinearArgs& args, Stream& stream) const {
    if (args.W.layer >= 0) return run_with_adapters(args, stream);
    MatrixOp::operator()(args, stream);
  }
  // The same where rows may have adapters: see StepAdapters.
  void run_with_adapters(const LinearArgs& args, Stream& stream) const;
  // Layers of the same rows of which none reads what another writes: to the same bits as one after
  // the other.
  void operator()(std::span<const LinearArgs> layers, Stream& stream) const;

  // Of these formats it takes a Matrix::transposed, and leaves out what a zero of x would be
  // multiplied with.
  std::set<const WeightFormat*> transposed;

  // Computes a group of layers in fewer launches than layers. null: one after the other.
  void (*run_group)(std::span<const LinearArgs> layers, Stream&) = nullptr;

  // Whether LinearArgs::conv may be this. null: never.
  bool (*convolves)(const LinearArgs& args, const CausalConv1dArgs& conv) = nullptr;
  bool takes_conv(const LinearArgs& args, const CausalConv1dArgs& conv) const {
    return convolves != nullptr && convolves(args, conv);
  }
  // Whether LinearArgs::activation may be this. null: never.
  bool (*activates)(const LinearArgs& args) = nullptr;
  bool takes_activation(const LinearArgs& args) const {
    return activates != nullptr && activates(args);
  }
  // A layer may defer the norm of the one that reads its rows where these are so many at most.
  int most_rows_of_deferred_norm = 0;
  bool defers_norm(const Matrix& W, const Matrix& next, int rows) const {
    return rows <= most_rows_of_deferred_norm && takes_deferred_norm(next) && takes_bf16(W);
  }
  // Whether a layer takes a norm that was deferred to it.
  bool takes_deferred_norm(const Matrix& W) const {
    return most_rows_of_deferred_norm > 0 && takes_bf16(W);
  }
};

struct LinearKernel {
  static constexpr const char* kName = "linear";
  LinearOp linear;
  static constexpr auto kOp = &LinearKernel::linear;
};

}  // namespace recurve
