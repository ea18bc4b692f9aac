#pragma once
#include "kernels/kernels.h"

// The definition of every op: scalar loops in fp32, one thread, made to be read. The formulas and
// shapes are in kernels/ops.
namespace recurve::reference {

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
void run(const HeldRowsArgs& args, Stream& stream);
void run(const SsdArgs& args, Stream& stream);
void run(const LinearRecurrenceArgs& args, Stream& stream);
void run(const FeatureMapArgs& args, Stream& stream);
void run(const TakeTokensArgs& args, Stream& stream);
void run(const SampleArgs& args, Stream& stream);
void run(const GatedRmsNormArgs& args, Stream& stream);
void run(const GlaArgs& args, Stream& stream);
void run(const GlaGateArgs& args, Stream& stream);
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

// Op::scratch of the one that has some.
ScratchBytes scratch_of(const SampleArgs& args);

// Writes into a table all that it lists.
template <typename Table>
void fill(Table& kernels) {
  kernels.put("reference", [](const auto& args, Stream& stream) { run(args, stream); });
}

Kernels table();

}  // namespace recurve::reference
