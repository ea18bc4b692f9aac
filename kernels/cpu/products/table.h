#pragma once
#include <string>

#include "kernels/activation_type.h"
#include "kernels/kernels.h"

namespace recurve::cpu {

// Writes over the linear layers of the table those that this machine has and is faster with, which
// is measured: in fp32, and those that round x as far as is allowed; and over the op that has a
// linear layer inside, which rounds nothing. Gives the types that x may have then, and those that
// were too slow: "f32, int8 (bf16 is slower here)".
std::string put_products(Kernels& kernels, ActivationType narrowest);

}  // namespace recurve::cpu
