#pragma once
#include "kernels/cpu/linear/linear.h"

// Products of linear layers on instructions that multiply narrow types. Each is null where this
// machine has none.
namespace recurve::cpu {

// x in fp32 as it is, each value the sum of three in bf16, with weights in bf16 (AMX). What is
// subnormal counts as zero.
const LinearProducts* amx_f32_products();
// x in whole numbers of 30 bits and a sign within a group of 64 columns, with weights in int8 and
// int4 (AMX): what is a 64th of the group's largest or more is exact. Where there are those of
// bf16.
const LinearProducts* amx_int8_products();
const LinearProducts* amx_int4_products();

// The others round x.

// x in bf16, with weights in bf16 (AMX, AVX512-BF16). Sums are in the order of the instruction,
// which flushes what is subnormal.
const LinearProducts* amx_bf16_products();
const LinearProducts* bf16_products();

// x in eight bits, with weights in int8 and int4 (AVX512-VNNI). x = s q in groups of 64 columns: s
// is the largest size over 127, q from -127 to 127. Sums within a group are exact, and those of
// groups in fp32, in the order of the groups.
const LinearProducts* int8_products();
const LinearProducts* int4_products();

}  // namespace recurve::cpu
