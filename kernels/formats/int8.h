#pragma once
#include "kernels/weight_format.h"

namespace recurve {

// Eight bits: w = s q, q from -127 to 127, a scale s in bf16 for 64 columns: 8.25 bits a value.
// Data: the q of a row as int8, in order. Scales: the bits of s, one for each group.
// s is the largest size in the group over 127. A group with a value that is
// not finite, or 2^112 or more, is NaN. Transposed: the q of a column and the scales of a group in
// the order of the outputs.
extern const WeightFormat kInt8Weights;

constexpr int64_t kInt8Group = 64;

}  // namespace recurve
