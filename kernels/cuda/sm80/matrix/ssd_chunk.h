#pragma once
#include "kernels/backend.h"
#include "kernels/ops/ssd.h"

namespace recurve::cuda::sm80 {

// All chunks of two rows or more, by tiles with products in bf16: false, and nothing is done, where
// heads do not fill tiles.
bool ssd_tiles(const SsdArgs& args, Stream& stream);

// Does the same for any heads, with products exact to 2^-23.
void ssd_chunks(const SsdArgs& args, Stream& stream);

// The chunks of one row.
void ssd_steps(const SsdArgs& args, Stream& stream);

// The same of states that are written once in several rows.
void ssd_held_steps(const SsdArgs& args, Stream& stream);

// Before chunks of two rows or more: takes the rows that lie next to their states in, where these
// are written once in several.
void ssd_take_in(const SsdArgs& args, Stream& stream);

}  // namespace recurve::cuda::sm80
