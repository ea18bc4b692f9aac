#include <algorithm>

#include "kernels/check.h"
#include "kernels/cuda/sm80/capabilities.h"
#include "kernels/cuda/sm80/linear/lora.h"
#include "kernels/cuda/sm80/linear/lora_tables.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm90/capabilities.h"
#include "kernels/cuda/sm90/ops.h"

namespace recurve::cuda::sm90 {
namespace {

bool rounds(const LoraArgs& args) { return args.linear && linear_takes(args.linear->W); }

// Whether what is added goes to whole fours of outputs.
bool takes(const LoraPart& part) {
  return part.first % 4 == 0 && part.N % 4 == 0 && sm80::aligned(part.B);
}

}  // namespace

int64_t joined_floats(const LoraArgs& args) {
  const LinearArgs& linear = *args.linear;
  const bool layer =
      linear_takes(linear.W) && linear.rows <= kMostJoinedRows && linear.outputs() % 4 == 0 &&
      sm80::aligned(linear.y) && sm80::aligned(linear.y_bf16) && sm80::aligned(linear.bias) &&
      sm80::aligned(linear.residual) && !(linear.swiglu && linear.residual != nullptr);
  const bool parts = std::ranges::all_of(args.groups, [&](const LoraRows& group) {
    return std::ranges::all_of(args.parts_of(group), takes);
  });
  const sm80::lora::Joined joined(args);
  if (!layer || !parts || joined.tiles == 0 || !joined.fits<false>()) {
    return 0;
  }
  return joined.table_bytes() / static_cast<int64_t>(sizeof(float)) +
         linear.rows * args.inner_floats();
}

void shrink(std::span<const LoraArgs> layers, Stream& stream) {
  bool round[LoraOp::kMostLayers] = {};
  CHECK(layers.size() <= LoraOp::kMostLayers);
  std::ranges::transform(layers, round, rounds);
  sm80::lora_shrink(layers, std::span(round).first(layers.size()), true, stream);
}

void run(const LoraArgs& args, Stream& stream) {
  if (!args.linear) return sm80::run(args, stream);
  sm80::lora_expand(args, rounds(args), stream);
}

}  // namespace recurve::cuda::sm90
