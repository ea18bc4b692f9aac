#pragma once
#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/common/cluster.cuh"

// Barriers in shared memory and the copies that arrive on them. PTX ISA, sections on mbarrier and
// cp.async.bulk.tensor.
namespace recurve::cuda::sm90 {

using Barrier = uint64_t;  // in shared memory

__device__ inline void init_barrier(Barrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}
// Makes the barriers known to the copy engine; by who made them, before anyone else touches them.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
// Arrives on the barrier of another block of the cluster. It says nothing of memory that is not
// shared, as a fence of all of it takes half a microsecond.
__device__ inline void arrive(Barrier* barrier, uint32_t rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(shared_address(barrier, rank))
               : "memory");
}
// Arrives, and the phase ends only when as many bytes have come.
__device__ inline void arrive_expecting(Barrier* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
// Whether the phase of this parity has ended: phase_ended() may take a while to say no, has_ended()
// says it at once.
#define RECURVE_ENDED(name, instruction)                           \
  __device__ inline bool name(Barrier* barrier, uint32_t parity) { \
    uint32_t ended;                                                \
    asm volatile(                                                  \
        "{\n"                                                      \
        ".reg .pred p;\n"                                          \
        "mbarrier." instruction                                    \
        ".parity.shared::cta.b64 p, [%1], %2;\n"                   \
        "selp.u32 %0, 1, 0, p;\n"                                  \
        "}"                                                        \
        : "=r"(ended)                                              \
        : "r"(shared_address(barrier)), "r"(parity)                \
        : "memory");                                               \
    return ended != 0;                                             \
  }
RECURVE_ENDED(phase_ended, "try_wait")
RECURVE_ENDED(has_ended, "test_wait")
#undef RECURVE_ENDED

// A wait of so many tries is a bug of ours, and an error is better than a GPU that hangs.
constexpr int kMostTries = 1 << 24;

// Waits until the condition holds.
template <typename Condition>
__device__ void wait_until(Condition holds) {
  for (int tries = 0; !holds(); ++tries) {
    if (tries == kMostTries) __trap();
  }
}
// Waits until the phase of this parity has ended. (Where products are on their way ptxas says that
// it injects warpgroup.wait, C7517: before the trap, and nowhere else.)
__device__ inline void wait(Barrier* barrier, uint32_t parity) {
  wait_until([&] { return phase_ended(barrier, parity); });
}

// What the L2 cache is to do with a box, as createpolicy encodes it.
enum class Keep : uint64_t {
  kFirstOut = 0x12F0000000000000,  // read once
  kNormal = 0x1000000000000000,
};

// The box of the tensor at (column, row), into shared memory, arriving on the barrier.
__device__ inline void load_box(void* to, const CUtensorMap& map, int column, int row,
                                Barrier* barrier, Keep keep) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier)),
      "l"(static_cast<uint64_t>(keep))
      : "memory");
}
// Loads several boxes side by side, from the one with this number on, as load_box() loads one: see
// tensor_map.h.
__device__ inline void load_boxes(void* to, const CUtensorMap& map, int box, int row,
                                  Barrier* barrier, Keep keep) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
      "l"(&map), "r"(0), "r"(row), "r"(box), "r"(shared_address(barrier)),
      "l"(static_cast<uint64_t>(keep))
      : "memory");
}
// Loads all boxes of a page from this row on: see value_page_map() in tensor_map.h.
__device__ inline void load_page_boxes(void* to, const CUtensorMap& map, int page, int row,
                                       Barrier* barrier, Keep keep) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %2, %4}], [%5], %6;" ::"r"(shared_address(to)),
      "l"(&map), "r"(0), "r"(row), "r"(page), "r"(shared_address(barrier)),
      "l"(static_cast<uint64_t>(keep))
      : "memory");
}
// Loads a box as load_box() does, but into the same place of every block of the cluster whose bit
// is set in `blocks`, and arrives on the barrier of each.
__device__ inline void load_box(void* to, const CUtensorMap& map, int column, int row,
                                Barrier* barrier, Keep keep, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(
          shared_address(to)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier)), "h"(blocks),
      "l"(static_cast<uint64_t>(keep))
      : "memory");
}
__device__ inline void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

}  // namespace recurve::cuda::sm90
