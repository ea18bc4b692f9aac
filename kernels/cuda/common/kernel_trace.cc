#include "kernels/cuda/common/kernel_trace.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>

#include "kernels/cuda/common/error.h"

namespace recurve::cuda {
namespace {

std::vector<const void*>& symbols() {
  static std::vector<const void*> symbols;
  return symbols;
}

KernelTrace* address_of(const void* symbol) {
  void* address = nullptr;
  CUDA_CHECK(cudaGetSymbolAddress(&address, symbol));
  return static_cast<KernelTrace*>(address);
}

// One that waits before each part of its rows writes a stamp for each.
bool of_one_kernel(const TracedKernel& a, const TracedKernel& b) {
  constexpr uint64_t kApart = 700;  // ns; no kernel is shorter
  return b.began - a.began < kApart && a.grid_x == b.grid_x && a.grid_y == b.grid_y &&
         a.threads == b.threads && a.shared == b.shared;
}

}  // namespace

bool add_kernel_trace(const void* symbol) {
  symbols().push_back(symbol);
  return true;
}

void clear_kernel_trace() {
  for (const void* symbol : symbols()) {
    CUDA_CHECK(cudaMemset(&address_of(symbol)->count, 0, sizeof(unsigned)));
  }
  CUDA_CHECK(cudaDeviceSynchronize());
}

std::vector<TracedKernel> read_kernel_trace() {
  std::vector<TracedKernel> all, kernels;
  const auto trace = std::make_unique<KernelTrace>();
  for (const void* symbol : symbols()) {
    CUDA_CHECK(
        cudaMemcpy(trace.get(), address_of(symbol), sizeof(KernelTrace), cudaMemcpyDeviceToHost));
    all.insert(all.end(), trace->stamps,
               trace->stamps + std::min(trace->count, KernelTrace::kMost));
  }
  std::sort(all.begin(), all.end(),
            [](const TracedKernel& a, const TracedKernel& b) { return a.began < b.began; });
  for (const TracedKernel& stamp : all) {
    const auto last = kernels.rbegin() + std::min<ptrdiff_t>(4, std::ssize(kernels));
    const auto same = std::find_if(kernels.rbegin(), last,
                                   [&](const TracedKernel& k) { return of_one_kernel(k, stamp); });
    if (same == last) {
      kernels.push_back(stamp);
    } else {
      same->came = std::min(same->came, stamp.came);
    }
  }
  return kernels;
}

}  // namespace recurve::cuda
