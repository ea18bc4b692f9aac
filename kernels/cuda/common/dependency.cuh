#pragma once
#ifdef RECURVE_KERNEL_TRACE
#include "kernels/cuda/common/kernel_trace.cuh"
#endif

// Kernels launched with launch_early() overlap with their predecessors in the stream. Each calls,
// in all its blocks, wait_for_previous() before it reads what kernels write and before it writes
// anything; only the weights of the delta rule's later tiles do otherwise. As every kernel waits
// for the one before it, the wait is for all that is ahead in the stream. It calls let_next_start()
// first, unless what the kernels after it load ahead would then be in the way of what kernels
// before it still load: large linear layers, convolutions, matrix steps and the gates before these
// say it after the wait.
namespace recurve::cuda {

// Waits until the kernel before this one has ended and what it wrote is there.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
#ifdef RECURVE_KERNEL_TRACE
  const uint64_t came = nanoseconds();
#endif
  asm volatile("griddepcontrol.wait;" ::: "memory");
#ifdef RECURVE_KERNEL_TRACE
  trace_kernel(came);
#endif
#endif
}

// Once all blocks have called this, the next kernel of the stream may use the remaining resources.
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace recurve::cuda
