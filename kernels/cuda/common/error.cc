#include "kernels/cuda/common/error.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

namespace recurve::cuda {

void throw_if_failed(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(fmt::format("{}:{}: {} failed: {} ({})", file, line, call,
                                       cudaGetErrorString(status), cudaGetErrorName(status)));
}

void abort_if_failed(cudaError_t status, const char* what, const char* file, int line) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr,
               "%s:%d: CUDA failed at '%s': %s (%s); the device's state is lost, so this ends\n",
               file, line, what, cudaGetErrorString(status), cudaGetErrorName(status));
  std::abort();
}

}  // namespace recurve::cuda
