#pragma once
#include "kernels/backend.h"
#include "kernels/ops/ssd.h"

namespace recurve::cuda::sm80 {

// All chunks of two rows or more, where a head's states fit.
bool ssd_chunks_fit(const SsdArgs& args);
void ssd_chunks(const SsdArgs& args, Stream& stream);

}  // namespace recurve::cuda::sm80
