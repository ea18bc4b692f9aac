#pragma once
#include "kernels/ops/linear.h"

namespace recurve::cpu {

// The products of one format for the rows [row_begin, row_end) and the outputs [begin, end), with
// bias and residual: of a row the same bits, whatever the ranges are.
using LinearBlock = void (*)(const LinearArgs& args, int64_t row_begin, int64_t row_end,
                             int64_t begin, int64_t end);

// The linear op: norm, products shared among the threads, gate and cap.
void linear_with(LinearBlock block, const LinearArgs& args, Stream& stream);

}  // namespace recurve::cpu
