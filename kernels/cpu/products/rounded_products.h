#pragma once
#include "kernels/cpu/linear.h"

// Products of linear layers with x rounded to a narrow type, on instructions that multiply it. Each
// is null where this machine has none: then x stays in fp32.
namespace recurve::cpu {

// x in bf16, with weights in bf16 (AVX512-BF16). A sum takes two products at a time, in the order
// of the instruction, and flushes what is subnormal.
const LinearProducts* bf16_products();

// x in eight bits, with weights in int8 and int4 (AVX512-VNNI). x = s q in groups of 64 columns: s
// is the largest size over 127, q from -127 to 127. Sums within a group are exact, and those of
// groups in fp32, in the order of the groups.
const LinearProducts* int8_products();
const LinearProducts* int4_products();

}  // namespace recurve::cpu
