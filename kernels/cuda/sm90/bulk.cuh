#pragma once
#include "kernels/cuda/sm90/async.cuh"

// Copies of the copy engine between memory and shared memory, of bytes that lie side by side:
// multiples of 16, at multiples of 16. PTX ISA, cp.async.bulk.
namespace recurve::cuda::sm90 {

// Into shared memory, arriving on the barrier.
__device__ inline void bulk_load(void* to, const void* from, uint32_t bytes, Barrier* full) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(full))
      : "memory");
}

// What was written to shared memory before is there for the copies of a thread that learns of it.
__device__ inline void show_to_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Out of shared memory; belongs to this thread's next group.
__device__ inline void bulk_store(void* to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
// Does the same with floats that are added to what is there.
__device__ inline void bulk_add(float* to, const float* from, uint32_t bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
      "r"(shared_address(from)), "r"(bytes)
      : "memory");
}
__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until the shared memory of all this thread's stores may be written again.
__device__ inline void wait_until_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Waits until all of them are done.
__device__ inline void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Asks for the bytes to be brought into the L2 cache, whatever is in them by then: so before
// wait_for_previous() too.
__device__ inline void bulk_prefetch(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes));
}

}  // namespace recurve::cuda::sm90
