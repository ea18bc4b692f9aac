#pragma once
#include <cstdint>
#include <vector>

// In builds with RECURVE_KERNEL_TRACE kernels record when they came and when all before them
// had ended, in wait_for_previous(): what lies between two such ends is what a kernel costs where
// it stands, with all that overlaps and all that is not in a cache. `recurve-bench step
// --kernel-trace`.
namespace recurve::cuda {

struct TracedKernel {
  uint64_t came, began;                      // ns: of the first block
  uint32_t grid_x, grid_y, threads, shared;  // shared: bytes, dynamic
};

// What the kernels of one source file have written.
struct KernelTrace {
  static constexpr unsigned kMost = 1 << 14;
  unsigned count, unused;
  TracedKernel stamps[kMost];
};

// symbol: a KernelTrace of the device.
bool add_kernel_trace(const void* symbol);

// Both are about the current device, and are called while it computes nothing.
void clear_kernel_trace();
std::vector<TracedKernel> read_kernel_trace();  // in the order in which kernels began

}  // namespace recurve::cuda
