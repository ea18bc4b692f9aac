#pragma once
#include "kernels/backend.h"
#include "kernels/ops/ssd.h"

namespace recurve::cuda::sm80 {

// All chunks of two rows or more.
void ssd_chunks(const SsdArgs& args, Stream& stream);

}  // namespace recurve::cuda::sm80
