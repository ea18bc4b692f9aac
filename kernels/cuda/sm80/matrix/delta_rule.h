#pragma once
#include "kernels/kernels.h"

namespace recurve::cuda::sm80 {

// Keys of a head, at most: a warp has all keys of its columns in registers.
constexpr int kMostDeltaKeys = 256;

// Few sequences of many rows: the same bits as the other kernels, by warps of half the columns, as
// a row waits for the one before it.
void delta_rule_rows(const DeltaRuleArgs& args, Stream& stream);

// Of each sequence the last row, where that is a chunk by itself, in the step form.
void delta_rule_last_rows(const DeltaRuleArgs& args, Stream& stream);

}  // namespace recurve::cuda::sm80
