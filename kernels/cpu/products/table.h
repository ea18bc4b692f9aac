#pragma once
#include <string>

#include "kernels/activation_type.h"
#include "kernels/kernels.h"

namespace recurve::cpu {

// What decides which linear layers a processor is faster with.
struct ProcessorTraits {
  bool amx = false;  // in bf16
  bool avx512_bf16 = false;
  bool avx512_vnni = false;
  bool amd = false;
};
ProcessorTraits this_processor();

struct ProductChoice {
  bool amx = false;   // x in fp32: the sum of three in bf16, or whole numbers
  bool bf16 = false;  // x rounded, with weights in bf16
  bool int8 = false;  // x rounded, with weights in int8 and int4
  // That x may have, and that the processor has no faster products of: "f32, int8 (bf16 is no
  // faster here)".
  std::string types;
};

// By the processor alone and never by a clock, as the choice decides over bits: seeds and durable
// sessions repeat at every start on machines of one kind.
//   AMX           multiplies at 16 times the rate of fp32: taken in fp32 too, in three passes
//   AVX512-BF16   has twice the rate of fp32 on AMD's (Zen 4 and later), and no more than fp32 on
//                 Intel's, which has AMX for it
//   AVX512-VNNI   has four times the rate of fp32; AMX in four digits, which round nothing, twice
//                 that of AVX512-VNNI
ProductChoice choose_products(const ProcessorTraits& processor, ActivationType narrowest);

// Writes the choice for this processor over the linear layers of the table. Gives
// ProductChoice::types.
std::string put_products(Kernels& kernels, ActivationType narrowest);

}  // namespace recurve::cpu
