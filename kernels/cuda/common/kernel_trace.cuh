#pragma once
#include "kernels/cuda/common/kernel_trace.h"

// The kernels' side of stamps.h, in each source file that has kernels.
namespace recurve::cuda {

static __device__ KernelTrace kernel_trace;
[[maybe_unused]] static const bool kernel_trace_added =
    add_kernel_trace(static_cast<const void*>(&kernel_trace));

__device__ inline uint64_t nanoseconds() {
  uint64_t time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

// The first thread writes, as one of a linear layer's warps waits only when it has asked for
// weights, which is much later.
__device__ inline void trace_kernel(uint64_t came) {
  if (threadIdx.x != 0 || blockIdx.x != 0 || blockIdx.y != 0) return;
  uint32_t shared;
  asm volatile("mov.u32 %0, %dynamic_smem_size;" : "=r"(shared));
  const unsigned i = atomicAdd(&kernel_trace.count, 1u);
  if (i >= KernelTrace::kMost) return;
  kernel_trace.stamps[i] = {came, nanoseconds(), gridDim.x, gridDim.y, blockDim.x, shared};
}

}  // namespace recurve::cuda
