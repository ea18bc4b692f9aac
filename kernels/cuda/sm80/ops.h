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

}  // namespace recurve::cuda::sm80
