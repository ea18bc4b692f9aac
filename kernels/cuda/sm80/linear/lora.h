#pragma once
#include <span>

#include "kernels/ops/lora.h"
#include "kernels/stream.h"

namespace recurve::cuda::sm80 {

// The two halves of the op for a layer, args.linear, or for rows alone. rounds: the layer
// multiplies x times the norm's weights rounded to bf16, and has the swiglu of kernels that do so.
// clusters: the card has them; they do not change in which order is added.
void lora_shrink(std::span<const LoraArgs> layers, std::span<const bool> rounds, bool clusters,
                 Stream& stream);
void lora_expand(const LoraArgs& args, bool rounds, Stream& stream);

}  // namespace recurve::cuda::sm80
