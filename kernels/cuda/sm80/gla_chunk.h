#pragma once
#include "kernels/backend.h"
#include "kernels/ops/gla.h"

namespace recurve::cuda::sm80 {

// All chunks of two rows or more.
void gla_chunks(const GlaArgs& args, Stream& stream);

}  // namespace recurve::cuda::sm80
