#pragma once
#include "kernels/ops/lora.h"
#include "kernels/stream.h"

namespace recurve::cuda::sm80 {

// The two halves of the op for a layer, args.linear, or for rows alone. rounds: the layer
// multiplies x times the norm's weights rounded to bf16, and has the swiglu of kernels that do so.
void lora_shrink(const LoraArgs& args, bool rounds, Stream& stream);
void lora_expand(const LoraArgs& args, bool rounds, Stream& stream);

}  // namespace recurve::cuda::sm80
