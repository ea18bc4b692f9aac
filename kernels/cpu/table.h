#pragma once
#include "kernels/kernels.h"

// Every op vectorised for the best instruction set of this machine, found at run time, and
// threaded. The stream must be a CpuStream. Results do not depend on the number of threads.
namespace recurve::cpu {

void run(const EmbedArgs& args, Stream& stream);
void run(const GatherRowsArgs& args, Stream& stream);
void run(const RmsNormArgs& args, Stream& stream);
void run(const LinearArgs& args, Stream& stream);
void run(const LoraArgs& args, Stream& stream);
void run(const MlstmArgs& args, Stream& stream);
void run(const HeadNormGateArgs& args, Stream& stream);
void run(const SoftCapArgs& args, Stream& stream);
void run(const LinearRecurrenceArgs& args, Stream& stream);
void run(const GatedRmsNormArgs& args, Stream& stream);
void run(const HeldRowsArgs& args, Stream& stream);
void run(const SsdArgs& args, Stream& stream);
void run(const SelectiveScanArgs& args, Stream& stream);
void run(const CausalConv1dArgs& args, Stream& stream);
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

// Op::scratch of those that have some.
ScratchBytes scratch_of(const LinearArgs& args);
ScratchBytes scratch_of(const MlstmArgs& args);
ScratchBytes scratch_of(const SsdArgs& args);
ScratchBytes scratch_of(const SelectiveScanArgs& args);
ScratchBytes scratch_of(const GlaArgs& args);
ScratchBytes scratch_of(const RotaryArgs& args);
ScratchBytes scratch_of(const HeadwiseLinearArgs& args);
ScratchBytes scratch_of(const Rwkv7Args& args);
ScratchBytes scratch_of(const DeltaRuleArgs& args);
ScratchBytes scratch_of(const RingAttentionArgs& args);
ScratchBytes scratch_of(const PagedAttentionArgs& args);
ScratchBytes scratch_of(const RouterArgs& args);
ScratchBytes scratch_of(const ExpertLinearArgs& args);

// Writes these ops over those of the table: the ones that are declared above.
void fill(Kernels& kernels);

// "avx3", "avx2", "sse2", "neon", ...
const char* isa();

}  // namespace recurve::cpu
