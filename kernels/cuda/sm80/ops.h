#pragma once
#include <span>

#include "kernels/kernels.h"

// Every op for GPUs of compute capability 8.0 or later. Each queues its kernels on the stream,
// which must be a CudaStream, and returns; all pointers are of that stream's device.
namespace recurve::cuda::sm80 {

void run(const EmbedArgs& args, Stream& stream);
void run(const GatherRowsArgs& args, Stream& stream);
void run(const RmsNormArgs& args, Stream& stream);
void run(const LinearArgs& args, Stream& stream);
void run(const LoraArgs& args, Stream& stream);
void run(const MlstmArgs& args, Stream& stream);
void run(const HeadNormGateArgs& args, Stream& stream);
void run(const SoftCapArgs& args, Stream& stream);
void run(const CausalConv1dArgs& args, Stream& stream);
void run(const SelectiveScanArgs& args, Stream& stream);
void run(const SsdArgs& args, Stream& stream);
void run(const LinearRecurrenceArgs& args, Stream& stream);
void run(const GatedRmsNormArgs& args, Stream& stream);
void run(const GlaArgs& args, Stream& stream);
void run(const GlaGateArgs& args, Stream& stream);
void run(const HeldRowsArgs& args, Stream& stream);
void run(const HgrnGateArgs& args, Stream& stream);
void run(const HeadRmsNormArgs& args, Stream& stream);
void run(const PositionsArgs& args, Stream& stream);
void run(const RotaryArgs& args, Stream& stream);
void run(const ActivationArgs& args, Stream& stream);
void run(const RnnArgs& args, Stream& stream);
void run(const LayerNormArgs& args, Stream& stream);
void run(const HeadwiseLinearArgs& args, Stream& stream);
void run(const GluArgs& args, Stream& stream);
void run(const SkipGateArgs& args, Stream& stream);
void run(const AddArgs& args, Stream& stream);
void run(const FeatureMapArgs& args, Stream& stream);
void run(const TokenShiftArgs& args, Stream& stream);
void run(const Rwkv7GateArgs& args, Stream& stream);
void run(const Rwkv7Args& args, Stream& stream);
void run(const HeadNormBonusArgs& args, Stream& stream);
void run(const DeltaGateArgs& args, Stream& stream);
void run(const DeltaRuleArgs& args, Stream& stream);
void run(const RgLruArgs& args, Stream& stream);
void run(const RingAttentionArgs& args, Stream& stream);
void run(const AppendArgs& args, Stream& stream);
void run(const PagedAttentionArgs& args, Stream& stream);
void run(const RouterArgs& args, Stream& stream);
void run(const ExpertLinearArgs& args, Stream& stream);
void run(const TakeTokensArgs& args, Stream& stream);
void run(const SampleArgs& args, Stream& stream);

// LinearOp::run_group.
void run_group(std::span<const LinearArgs> layers, Stream& stream);

// LoraOp::shrink.
void shrink(std::span<const LoraArgs> layers, Stream& stream);

}  // namespace recurve::cuda::sm80
