#pragma once
#include <cstddef>

namespace recurve {

// memcpy for bytes that are not read soon: where the processor can, it leaves the caches to
// those who compute, and so is faster too. The memory does not overlap.
void streaming_copy(void* to, const void* from, size_t bytes);

}  // namespace recurve
