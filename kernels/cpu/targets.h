// Included before Highway's headers by every file of this folder that uses vectors: the
// instruction sets that are not compiled, because they add nothing to these kernels over the next
// lower one, or because the length of their vectors is not known when compiling.
#pragma once

#ifndef RECURVE_LEFT_OUT_VECTORS
#define RECURVE_LEFT_OUT_VECTORS 0  // sanitizer builds leave one out: see CMakeLists.txt
#endif

#define HWY_DISABLED_TARGETS                                                              \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | \
   HWY_RVV | RECURVE_LEFT_OUT_VECTORS)
