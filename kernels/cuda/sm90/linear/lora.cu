#include "kernels/cuda/sm80/linear/lora.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm90/capabilities.h"
#include "kernels/cuda/sm90/ops.h"

namespace recurve::cuda::sm90 {
namespace {

bool rounds(const LoraArgs& args) { return args.linear && linear_takes(args.linear->W); }

}  // namespace

void shrink(const LoraArgs& args, Stream& stream) { sm80::lora_shrink(args, rounds(args), stream); }

void run(const LoraArgs& args, Stream& stream) {
  if (!args.linear) return sm80::run(args, stream);
  sm80::lora_expand(args, rounds(args), stream);
}

}  // namespace recurve::cuda::sm90
