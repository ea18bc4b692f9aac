#pragma once
#include <string>

#include "model/weights/linear_weights.h"

namespace recurve {

// A = -exp(A_log), the rates of decay of a state space in fp32, from the tensor that holds A_log in
// the shape given. Source: Mamba, modules/mamba_simple.py and mamba2.py.
VectorWeights load_decay(Backend& backend, Checkpoint& checkpoint, const std::string& name,
                         const Shape& shape);

}  // namespace recurve
