#include <algorithm>

#include "kernels/check.h"
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/attention/paged_attention.h"
#include "kernels/cuda/sm90/attention/prompt_group.cuh"
#include "kernels/cuda/sm90/tensor_map.h"

// Attention over pages for sequences with many queries. A tile is 128 queries that share a head of
// keys; each of two warpgroups has 64 of them, with their queries in shared memory and scores,
// weights and sums in registers, and another warp has the pages copied ahead for both: while one
// weighs, the tensor cores multiply for the other. Blocks stay for several tiles.
//
// Every query has the operations of sm80/attention/paged_attention_tiles.cu in their order, so the
// bits are the same.
namespace recurve::cuda::sm90 {
namespace {

using namespace attention_prompts;  // NOLINT: this kernel's own

// What the warp that copies does.
template <int kD>
__device__ void load_pages(const PromptArgs& args, const CUtensorMap& keys,
                           const CUtensorMap& values, Shared<kD>& s) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  PageRing<Shared<kD>::kStages> ring;
  for_each_tile(args, [&](const Tile& tile) {
    const int slot = tile.seq.slot, head = tile.key_head;
    if (slot == 0) return;
    const PageWalk walk = walk_of(tile);
    int32_t key_pages = 0, value_pages = 0;
    for (int i = 0; i < walk.count; ++i) {
      if (i % kWarpSize == 0 && i + lane < walk.count) {
        key_pages = sm80::page_of(args.a.keys, slot, walk.page(i + lane));
        value_pages = sm80::page_of(args.a.values, slot, walk.page(i + lane));
      }
      const int key_page = __shfl_sync(0xffffffffu, key_pages, i % kWarpSize);
      const int value_page = __shfl_sync(0xffffffffu, value_pages, i % kWarpSize);
      fill_stage(s, ring, [&](void* to, Barrier* full) {
        load_boxes(to, keys, key_page, head * kD, full, Keep::kNormal);
      });
      fill_stage(s, ring, [&](void* to, Barrier* full) {
        load_page_boxes(to, values, value_page, head * kPage, full, Keep::kNormal);
      });
    }
  });
}

// Blocks: one a multiprocessor.
template <int kD>
__global__ void __launch_bounds__(kThreads, 1)
    attend_prompts_kernel(const __grid_constant__ CUtensorMap keys,
                          const __grid_constant__ CUtensorMap values,
                          const __grid_constant__ PromptArgs args) {
  extern __shared__ __align__(1024) std::byte prompt_memory[];
  Shared<kD>& s = *reinterpret_cast<Shared<kD>*>(prompt_memory);
  // This is the same for a whole warp, which the compiler has to see.
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kWarpSize, 0);
  let_next_start();
  if (threadIdx.x == 0) {
    prefetch_map(keys);
    prefetch_map(values);
    for (int i = 0; i < Shared<kD>::kStages; ++i) {
      init_barrier(&s.full[i], 1);
      init_barrier(&s.empty[i], kTileThreads / kWarpSize);
    }
    publish_barriers();
  }
  __syncthreads();
  wait_for_previous();
  if (warp < kTileThreads / kWarpSize) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kTileRegisters));
    PromptGroup<kD>(args, s, warp / (kGroupThreads / kWarpSize)).run();
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kOtherRegisters));
    if (warp == kTileThreads / kWarpSize) load_pages<kD>(args, keys, values, s);
  }
}

template <int kD>
void launch(const PagedAttentionArgs& a, Stream& stream) {
  const auto& cuda_stream = static_cast<const CudaStream&>(stream);
  const int shared_by = a.H / a.HK;
  const int64_t tiles =
      sm80::tiles_before<kQueries>(a.seqs.rows, shared_by, a.seqs.num_seqs) * a.HK;
  const int64_t blocks = std::min<int64_t>(cuda_stream.multiprocessors(), tiles);
  const auto scratch = cuda_stream.scratch();
  CHECK(kJoinedBytes<kD> * static_cast<size_t>(blocks) <= scratch.size());
  const auto kernel = attend_prompts_kernel<kD>;
  use(stream);
  abort_if_failed(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                       cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(sizeof(Shared<kD>))),
                  "paged_attention");
  launch_early(
      stream, "paged_attention", kernel,
      {.grid = static_cast<unsigned>(blocks), .threads = kThreads, .shared = sizeof(Shared<kD>)},
      key_page_map(a.keys, a.HK, a.D), value_page_map(a.values, a.HK, a.D),
      PromptArgs{a, reinterpret_cast<float4*>(scratch.data()), tiles});
}

}  // namespace

void attend_to_prompts(const PagedAttentionArgs& args, Stream& stream) {
  if (args.D == 64) {
    launch<64>(args, stream);
  } else if (args.D == 128) {
    launch<128>(args, stream);
  } else {
    launch<256>(args, stream);
  }
}

}  // namespace recurve::cuda::sm90
