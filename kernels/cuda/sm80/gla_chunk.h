#pragma once
#include "kernels/backend.h"
#include "kernels/ops/gla.h"

namespace recurve::cuda::sm80 {

// Scratch memory of a block of rows.
size_t bytes_of_gla_block(const GlaArgs& args);

// All chunks of two rows or more.
void gla_chunks(const GlaArgs& args, Stream& stream);

}  // namespace recurve::cuda::sm80
