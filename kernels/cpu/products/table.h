#pragma once
#include <string>

#include "kernels/activation_type.h"
#include "kernels/kernels.h"

namespace recurve::cpu {

// Writes over the linear layers of the table those that round x as far as is allowed, where this
// machine has products of that type and is faster with them, which is measured. Gives the types
// that x may have then, and those that were too slow: "f32, int8 (bf16 is slower here)".
std::string put_products(LinearOp& linear, ActivationType narrowest);

}  // namespace recurve::cpu
