#pragma once
#include "kernels/cpu/linear.h"
#include "kernels/weight_format.h"

namespace recurve::cpu {

// Whether on this machine `narrow` takes at most four fifths of the time of `wide` for layers of
// few rows and of many whose weights have this format, on one thread, out of its caches. Takes some
// milliseconds. What an instruction is worth differs between machines by a factor of two and more:
// AVX512-BF16 has half the rate of fp32 on some, and twice on others. So the answer does not change
// from one start to the next, and with it no token.
bool is_faster(LinearRun narrow, LinearRun wide, const WeightFormat& format);

}  // namespace recurve::cpu
