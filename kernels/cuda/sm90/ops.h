#pragma once
#include <span>

#include "kernels/kernels.h"

// What is done better on GPUs of compute capability 9.0. As sm80/ops.h.
namespace recurve::cuda::sm90 {

void run(const DeltaRuleArgs& args, Stream& stream);
void run(const ExpertLinearArgs& args, Stream& stream);
void run(const GlaArgs& args, Stream& stream);
void run(const LinearArgs& args, Stream& stream);
void run(const LoraArgs& args, Stream& stream);
void run(const MlstmArgs& args, Stream& stream);
void run(const PagedAttentionArgs& args, Stream& stream);
void run(const RnnArgs& args, Stream& stream);
void run(const SelectiveScanArgs& args, Stream& stream);
void run(const SsdArgs& args, Stream& stream);

// LinearOp::run_group.
void run_group(std::span<const LinearArgs> layers, Stream& stream);

// LoraOp::shrink.
void shrink(std::span<const LoraArgs> layers, Stream& stream);
// LoraOp::joined_floats.
int64_t joined_floats(const LoraArgs& args);

}  // namespace recurve::cuda::sm90
