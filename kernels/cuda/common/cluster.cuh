#pragma once
#include <cstdint>

// Blocks of a cluster and each other's shared memory: on compute capability 9.0 or later; on older
// GPUs no kernel is launched with clusters. PTX ISA, section on barrier.cluster.
namespace recurve::cuda {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// The block's number in its cluster, and the cluster's in the grid; without clusters they are 0 and
// the block's own.
__device__ inline int rank_in_cluster() {
  uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return static_cast<int>(rank);
}
__device__ inline int cluster_number() {
  uint32_t number = blockIdx.x;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(number));
#endif
  return static_cast<int>(number);
}

// The address of the same place in the shared memory of another block of the cluster.
__device__ inline uint32_t shared_address(const void* mine, uint32_t rank) {
  uint32_t there = 0;
#if __CUDA_ARCH__ >= 900
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(mine)), "r"(rank));
#endif
  return there;
}

// All threads of all blocks of the cluster; what each wrote to shared memory is there for all.
// Fences of shared memory alone: one of all memory takes half a microsecond.
__device__ inline void sync_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "fence.release.sync_restrict::shared::cta.cluster;\n"
      "barrier.cluster.arrive.relaxed;\n"
      "barrier.cluster.wait;\n"
      "fence.acquire.sync_restrict::shared::cluster.cluster;" ::
          : "memory");
#endif
}
// Waits for all threads of the cluster as sync_cluster() does, but orders no memory: after it no
// thread is going to read what others have.
__device__ inline void leave_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" ::: "memory");
#endif
}
// Says that what the thread has read, of any memory, may be written by those of its cluster that
// wait for all of its threads: each says so once. Those that have ended need not.
__device__ inline void arrive_in_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ inline void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}
// Four floats from the same place in the shared memory of another block of the cluster, or one.
__device__ inline float4 load4_shared(const float* mine, uint32_t rank) {
  float4 value = {};
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(shared_address(mine, rank))
               : "memory");
#endif
  return value;
}
__device__ inline float load_shared(const float* mine, uint32_t rank) {
  float value = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.f32 %0, [%1];"
               : "=f"(value)
               : "r"(shared_address(mine, rank))
               : "memory");
#endif
  return value;
}

}  // namespace recurve::cuda
