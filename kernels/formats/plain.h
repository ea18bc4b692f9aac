#pragma once
#include "kernels/weight_format.h"

namespace recurve {

// The formats that every kernel takes: fp32, and bf16, rounded to nearest even.
extern const WeightFormat kF32Weights;
extern const WeightFormat kBf16Weights;

}  // namespace recurve
