#pragma once
#include "kernels/backend.h"
#include "kernels/ops/gla.h"

namespace recurve::cuda::sm80 {

// Scratch memory of a block of rows.
size_t bytes_of_gla_block(const GlaArgs& args);

// All chunks of two rows or more, by tiles with products in bf16: false, and nothing is done, where
// heads do not fill tiles or each channel has a decay.
bool gla_tiles(const GlaArgs& args, Stream& stream);

// Does the same for any heads, with products exact to 2^-23.
void gla_chunks(const GlaArgs& args, Stream& stream);

// The chunks of one row.
void gla_steps(const GlaArgs& args, Stream& stream);

}  // namespace recurve::cuda::sm80
