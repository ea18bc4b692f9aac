#pragma once
#include <cstdint>

// Copies to shared memory that a thread does not wait for (PTX ISA, cp.async).
namespace recurve::cuda::sm80 {

// Copies 16 bytes past the L1 cache, with zeros behind the first `bytes`.
__device__ inline void copy_16_bytes(uint32_t to, const void* from, int bytes = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
// Copies 8 or 16 bytes, from an address that is a multiple of as many.
template <int kBytes>
__device__ inline void copy_bytes(uint32_t to, const void* from) {
  if constexpr (kBytes == 16) return copy_16_bytes(to, from);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes)
               : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Until only the last kLeft groups of copies are under way.
template <int kLeft>
__device__ void wait_for_all_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

}  // namespace recurve::cuda::sm80
