#pragma once
#include "kernels/cuda/sm90/async.cuh"

// What a warp that has pages copied ahead and the threads that multiply them share.
namespace recurve::cuda::sm90 {

// Where a thread is in the ring of stages.
template <int kStages>
struct PageRing {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void step() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// Has the copy engine fill the ring's next stage, once it has been read. All lanes of a warp.
// load(to, full) starts a copy of S::kBytes.
template <typename S, typename Load>
__device__ void fill_stage(S& s, PageRing<S::kStages>& ring, Load load) {
  wait(&s.empty[ring.stage], ring.parity ^ 1);
  if (threadIdx.x % kWarpSize == 0) {
    arrive_expecting(&s.full[ring.stage], S::kBytes);
    load(s.stages[ring.stage], &s.full[ring.stage]);
  }
  __syncwarp();
  ring.step();
}

// Tells that a warp has read a stage. All its lanes.
template <typename S>
__device__ void release_stage(S& s, PageRing<S::kStages>& ring) {
  __syncwarp();
  if (threadIdx.x % kWarpSize == 0) arrive(&s.empty[ring.stage]);
  ring.step();
}

// Waits for the kThreads threads that multiply.
template <int kThreads>
__device__ inline void sync_multiplying() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}
// The same; whether the condition holds for any thread.
template <int kThreads>
__device__ inline bool sync_multiplying_or(bool condition) {
  uint32_t any;
  asm volatile(
      "{\n"
      ".reg .pred p, q;\n"
      "setp.ne.u32 p, %1, 0;\n"
      "bar.red.or.pred q, 1, %2, p;\n"
      "selp.u32 %0, 1, 0, q;\n"
      "}"
      : "=r"(any)
      : "r"(static_cast<uint32_t>(condition)), "n"(kThreads)
      : "memory");
  return any != 0;
}

}  // namespace recurve::cuda::sm90
