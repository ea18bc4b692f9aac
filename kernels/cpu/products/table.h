#pragma once
#include <string>

#include "kernels/activation_type.h"
#include "kernels/kernels.h"

namespace recurve::cpu {

// Writes over the linear layers of the table those that round x as far as is allowed, where this
// machine has products of that type. Gives the types that x may have then: "f32, bf16, int8".
std::string put_products(LinearOp& linear, ActivationType narrowest);

}  // namespace recurve::cpu
