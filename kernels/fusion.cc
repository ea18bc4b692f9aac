#include "kernels/fusion.h"

#include <algorithm>
#include <vector>

#include "kernels/weight_format.h"

namespace recurve {

Activations rows_for(const Kernels& kernels, const Matrix& next, float* f32, float* spare,
                     int64_t spare_width) {
  const bool fits = 2 * spare_width >= next.K;
  if (!fits || !kernels.linear.takes_bf16(next)) return {.f32 = f32};
  return {.f32 = f32, .bf16 = reinterpret_cast<uint16_t*>(spare)};
}

Activations rows_for(const Kernels& kernels, std::span<const Matrix> next, float* f32,
                     float* spare) {
  const auto rounds = [&](const Matrix& W) { return kernels.linear.takes_bf16(W); };
  if (std::ranges::none_of(next, rounds)) return {.f32 = f32};
  const bool all = std::ranges::all_of(next, rounds);
  return {.f32 = all ? nullptr : f32, .bf16 = reinterpret_cast<uint16_t*>(all ? f32 : spare)};
}

void read_rows(const Kernels& kernels, const Activations& rows, LinearArgs& next) {
  next.x = rows.f32;
  if (rows.bf16 != nullptr && kernels.linear.takes_bf16(next.W)) next.x_bf16 = rows.bf16;
}

void join(const Kernels& kernels, LinearArgs& first, LinearArgs& next, float* between) {
  first.y = between;
  next.x = between;
  if (!kernels.linear.takes_bf16(first.W) || !kernels.linear.takes_bf16(next.W)) return;
  first.y_bf16 = reinterpret_cast<uint16_t*>(between);
  next.x_bf16 = first.y_bf16;
}

Activations rows_between(const Kernels& kernels, const Matrix& first, const Matrix& next,
                         float* f32, float* spare) {
  if (!kernels.linear.takes_bf16(first)) return {.f32 = f32};
  return rows_for(kernels, next, f32, spare, next.K);
}

bool is_transposed_for_zeros(const Kernels& kernels, const WeightFormat& format) {
  return kernels.linear.transposed.contains(&format);
}

void linear_conv(const Kernels& kernels, LinearArgs linear, const CausalConv1dArgs& conv,
                 Stream& stream) {
  if (kernels.linear.takes_conv(linear, conv)) linear.conv = conv;
  kernels.linear(linear, stream);
  if (!linear.conv) kernels.causal_conv1d(conv, stream);
}

void linear_group(const Kernels& kernels, std::span<const LinearArgs> layers, Stream& stream) {
  std::vector<LinearArgs> products(layers.begin(), layers.end());
  std::vector<ActivationArgs> activations;  // that remain
  for (LinearArgs& layer : products) {
    if (layer.activation == Activation::kIdentity || kernels.linear.takes_activation(layer)) {
      continue;
    }
    activations.push_back(layer.activation_behind());
    layer.activation = Activation::kIdentity;
    layer.y_bf16 = nullptr;
  }
  kernels.linear(products, stream);
  for (const ActivationArgs& activation : activations) kernels.activation(activation, stream);
}

void norm_shift(const Kernels& kernels, const LayerNormArgs& norm, TokenShiftArgs shift,
                Stream& stream) {
  if (!kernels.token_shift.takes_norm(shift)) {
    kernels.layer_norm(norm, stream);
    return kernels.token_shift(shift, stream);
  }
  shift.x = norm.x;
  shift.norm = norm.w;
  shift.norm_bias = norm.b;
  shift.norm_eps = norm.eps;
  kernels.token_shift(shift, stream);
}

void rwkv7_cell(const Kernels& kernels, const Rwkv7GateArgs& gate, Rwkv7Args recurrence,
                const HeadNormBonusArgs& out, Stream& stream) {
  if (kernels.rwkv7.takes_cell(recurrence)) {
    recurrence.gate = gate;
    recurrence.out = out;
    return kernels.rwkv7(recurrence, stream);
  }
  kernels.rwkv7_gate(gate, stream);
  kernels.rwkv7(recurrence, stream);
  kernels.head_norm_bonus(out, stream);
}

size_t floats_of_norm(const Kernels& kernels, int rows, int64_t D) {
  return static_cast<size_t>(
      DeferredRmsNorm::floats(std::min(rows, kernels.linear.most_rows_of_deferred_norm), D));
}

DeferredRmsNorm defer_norm(const Kernels& kernels, LinearArgs& args, const Matrix& next,
                           const float* norm, const DeferredRmsNorm& memory) {
  if (!kernels.linear.defers_norm(args.W, next, args.rows)) return {};
  args.next_norm = norm;
  args.next = memory;
  return memory;
}

DeferredRmsNorm defer_norm(const Kernels& kernels, SsdArgs& args, const Matrix& next,
                           const float* norm, float* memory) {
  if (!kernels.ssd.defers_norm(args) || !kernels.linear.takes_deferred_norm(next)) return {};
  args.next_norm = norm;
  args.next = DeferredRmsNorm::in(memory, args.seqs.rows, next.K);
  return args.next;
}

}  // namespace recurve
