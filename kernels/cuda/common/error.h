#pragma once
#include <cuda_runtime_api.h>

namespace recurve::cuda {

// Throws std::runtime_error naming the call, where it stands and what CUDA says of it.
void throw_if_failed(cudaError_t status, const char* call, const char* file, int line);

// Does the same inside a step, where nothing may be thrown: it says so in one sentence and ends the
// process. `what` is the op or copy that failed.
void abort_if_failed(cudaError_t status, const char* what, const char* file = __builtin_FILE(),
                     int line = __builtin_LINE());

}  // namespace recurve::cuda

// What loading and allocation are checked with.
#define CUDA_CHECK(call) ::recurve::cuda::throw_if_failed((call), #call, __FILE__, __LINE__)
