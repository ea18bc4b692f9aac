#pragma once
#include "kernels/kernels.h"

// What is done better on GPUs of compute capability 9.0. As sm80/ops.h.
namespace recurve::cuda::sm90 {

void linear(const LinearArgs& args, Stream& stream);
// Of more rows no layer begins a norm; where other ops do, a kernel of its own finds the scales.
constexpr int kMostRowsOfBegunNorm = 64;
bool linear_rounds(const Matrix& W);
bool linear_convolves(const LinearArgs& args, const CausalConv1dArgs& conv);
void ssd(const SsdArgs& args, Stream& stream);
bool ssd_begins_norm(const SsdArgs& args);
void rnn(const RnnArgs& args, Stream& stream);
void selective_scan(const SelectiveScanArgs& args, Stream& stream);

}  // namespace recurve::cuda::sm90
