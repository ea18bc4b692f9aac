#pragma once
#include "kernels/kernels.h"

// Every op for GPUs of compute capability 8.0 or later. Each queues its kernels on the stream,
// which must be a CudaStream, and returns; all pointers are of that stream's device.
namespace recurve::cuda::sm80 {

void embed(const EmbedArgs& args, Stream& stream);
void gather_rows(const GatherRowsArgs& args, Stream& stream);
void rms_norm(const RmsNormArgs& args, Stream& stream);
void linear(const LinearArgs& args, Stream& stream);
void mlstm(const MlstmArgs& args, Stream& stream);
void head_norm_gate(const HeadNormGateArgs& args, Stream& stream);
void swiglu(const SwigluArgs& args, Stream& stream);
void soft_cap(const SoftCapArgs& args, Stream& stream);
void causal_conv1d(const CausalConv1dArgs& args, Stream& stream);
void selective_scan(const SelectiveScanArgs& args, Stream& stream);
void ssd(const SsdArgs& args, Stream& stream);
bool ssd_begins_norm(const SsdArgs& args);
void linear_recurrence(const LinearRecurrenceArgs& args, Stream& stream);
void gated_rms_norm(const GatedRmsNormArgs& args, Stream& stream);
void gla(const GlaArgs& args, Stream& stream);
void gla_gate(const GlaGateArgs& args, Stream& stream);
void hgrn_gate(const HgrnGateArgs& args, Stream& stream);
void head_rms_norm(const HeadRmsNormArgs& args, Stream& stream);
void positions(const PositionsArgs& args, Stream& stream);
void rotary(const RotaryArgs& args, Stream& stream);
void activation(const ActivationArgs& args, Stream& stream);
void rnn(const RnnArgs& args, Stream& stream);
void layer_norm(const LayerNormArgs& args, Stream& stream);
void headwise_linear(const HeadwiseLinearArgs& args, Stream& stream);
void glu(const GluArgs& args, Stream& stream);
void skip_gate(const SkipGateArgs& args, Stream& stream);
void add(const AddArgs& args, Stream& stream);
void feature_map(const FeatureMapArgs& args, Stream& stream);
void take_tokens(const TakeTokensArgs& args, Stream& stream);
void sample(const SampleArgs& args, Stream& stream);

}  // namespace recurve::cuda::sm80
