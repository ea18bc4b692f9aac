#pragma once
#include "kernels/backend.h"
#include "kernels/ops/gla.h"

namespace recurve::cuda::sm80 {

// All chunks of two rows or more, where a head's keys fit.
bool gla_chunks_fit(const GlaArgs& args);
void gla_chunks(const GlaArgs& args, Stream& stream);

}  // namespace recurve::cuda::sm80
