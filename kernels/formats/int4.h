#pragma once
#include "kernels/weight_format.h"

namespace recurve {

// Four bits: w = s q + m, q from 0 to 15, a scale s and a minimum m in bf16 for 64 columns: 4.5
// bits a value. Data of a group: 16 words of 16 bits; bits 4 i to 4 i + 3 of word j are the q of
// column 16 i + j. Scales: the bits of s, then those of m. s and m are, of nine candidates, those
// of the least squared error: the range of the group and nine and eight tenths of it around its
// middle, each fitted by least squares twice more. A group with a value that is not
// finite, or 2^112 or more, is NaN. Transposed: 32 outputs are 16 bytes, the lower bits of byte j
// the q of output j and the upper ones of output 16 + j; scales in the order of the outputs.
extern const WeightFormat kInt4Weights;

constexpr int64_t kInt4Group = 64;
constexpr int64_t kInt4Outputs = 32;  // that share bytes of a transposed matrix

}  // namespace recurve
