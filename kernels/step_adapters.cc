#include "kernels/step_adapters.h"

#include <algorithm>
#include <vector>

#include "kernels/check.h"

namespace recurve {

void LinearOp::run_with_adapters(const LinearArgs& args, Stream& stream) const {
  const StepAdapters* const adapters = stream.adapters();
  const MatrixOp<LinearArgs>& bare = *this;
  if (adapters == nullptr || !adapters->changes(args.W.layer)) return bare(args, stream);
  adapters->run(bare, args, stream);
}

void LinearOp::operator()(std::span<const LinearArgs> layers, Stream& stream) const {
  const StepAdapters* const adapters = stream.adapters();
  if (run_group != nullptr && adapters == nullptr) return run_group(layers, stream);
  if (run_group != nullptr) return adapters->run_group(*this, layers, stream);
  for (const LinearArgs& layer : layers) (*this)(layer, stream);
}

bool StepAdapters::changes(int32_t layer) const {
  return layer >= 0 && std::ranges::any_of(groups_, [layer](const LoraRows& group) {
           return !group.layers[static_cast<size_t>(layer)].empty();
         });
}

void StepAdapters::run(const MatrixOp<LinearArgs>& bare, const LinearArgs& args,
                       Stream& stream) const {
  CHECK(args.rows == rows_ && args.soft_cap == 0);
  if (kernels_.lora.shrink == nullptr) return run_ops(bare, args, stream);
  LoraArgs lora = of_layer(args);
  if (joined_floats(lora) == 0) return run_around(bare, args, stream);
  lora.joined = true;
  kernels_.lora.shrink({&lora, 1}, stream);
  bare(joined(lora), stream);
}

LoraArgs StepAdapters::of_layer(const LinearArgs& args) const {
  return {.layer = args.W.layer,
          .K = args.W.K,
          .N = args.W.N,
          .groups = groups_,
          .linear = args,
          .inner = between_ + kReadyFloats,
          .ready = reinterpret_cast<uint32_t*>(between_)};
}

// 0: the layer's kernel does not add what adapters do.
int64_t StepAdapters::joined_floats(const LoraArgs& lora) const {
  return kernels_.lora.joined_floats == nullptr ? 0 : kernels_.lora.joined_floats(lora);
}

// The layer, with lora, which outlives it.
LinearArgs StepAdapters::joined(const LoraArgs& lora) {
  LinearArgs layer = *lora.linear;
  layer.W.layer = -1;
  layer.lora = &lora;
  return layer;
}

void StepAdapters::run_group(const LinearOp& op, std::span<const LinearArgs> layers,
                             Stream& stream) const {
  std::vector<LinearArgs> group, others;
  std::vector<LoraArgs> loras;
  // Of a layer, as it may be alone: what its outputs would take is free.
  int64_t room = rows_ * (layers.empty() ? 0 : layers[0].W.N + layers[0].W.K);
  float* free = nullptr;
  for (const LinearArgs& layer : layers) {
    CHECK(layer.rows == rows_ && layer.soft_cap == 0);
    if (!changes(layer.W.layer)) {
      group.push_back(layer);
      continue;
    }
    LoraArgs lora = of_layer(layer);
    const int64_t floats = (joined_floats(lora) + 3) / 4 * 4;
    if (floats == 0 || floats > room || loras.size() == LoraOp::kMostLayers) {
      others.push_back(layer);
      continue;
    }
    lora.joined = true;
    if (!loras.empty()) lora.inner = free;
    free = lora.inner + floats;
    room -= floats;
    loras.push_back(lora);
  }
  if (!loras.empty()) kernels_.lora.shrink(loras, stream);
  for (const LoraArgs& lora : loras) group.push_back(joined(lora));
  if (!group.empty()) op.run_group(group, stream);
  for (const LinearArgs& layer : others) op(layer, stream);
}

// One op after the other.
void StepAdapters::run_ops(const MatrixOp<LinearArgs>& bare, const LinearArgs& args,
                           Stream& stream) const {
  CHECK(args.x_bf16 == nullptr && args.y_bf16 == nullptr && !args.conv);
  CHECK(args.activation == Activation::kIdentity && args.next_norm == nullptr);
  const int64_t K = args.W.K, N = args.W.N;
  LinearArgs layer = args;
  layer.W.layer = -1;  // a backend around another one would ask again
  float* free = between_;
  if (args.norm != nullptr) {
    kernels_.rms_norm(args.norm_into(free), stream);
    layer.x = free;
    layer.norm = nullptr;
    free += args.rows * K;
  }
  if (args.swiglu) {
    layer.y = free;
    layer.swiglu = false;
  }
  bare(layer, stream);
  kernels_.lora(
      {.layer = args.W.layer, .K = K, .N = N, .groups = groups_, .x = layer.x, .y = layer.y},
      stream);
  if (args.swiglu) kernels_.glu(args.gate_of(layer.y), stream);
}

// The op lora before and behind the product, which reads x as it does without adapters.
void StepAdapters::run_around(const MatrixOp<LinearArgs>& bare, const LinearArgs& args,
                              Stream& stream) const {
  const bool activates = args.activation != Activation::kIdentity;
  LoraArgs lora = of_layer(args);
  lora.linear->conv.reset();
  lora.linear->activation = Activation::kIdentity;
  if (activates) lora.linear->y_bf16 = nullptr;
  const bool ends_elsewhere = args.swiglu || lora.linear->y_bf16 != nullptr;
  lora.y = ends_elsewhere ? lora.inner + args.rows * lora.inner_floats() : args.y;
  LinearArgs product = *lora.linear;
  product.W.layer = -1;
  product.y = lora.y;
  product.y_bf16 = nullptr;
  product.swiglu = false;
  product.next_norm = nullptr;
  product.next = {};
  kernels_.lora.shrink({&lora, 1}, stream);
  bare(product, stream);
  kernels_.lora(lora, stream);
  if (activates) kernels_.activation(args.activation_behind(), stream);
  if (args.conv) kernels_.causal_conv1d(*args.conv, stream);
}

}  // namespace recurve
