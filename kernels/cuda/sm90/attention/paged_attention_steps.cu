#include <algorithm>

#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/attention/paged_attention.h"
#include "kernels/cuda/sm90/attention/step_tile.cuh"
#include "kernels/cuda/sm90/tensor_map.h"

// Attention over pages where each sequence has few queries. A unit of work is a part of the keys of
// a sequence and a head of keys, with all queries that share them. All units, in the order of
// sequences, heads and parts, are cut evenly over the blocks that the card holds at once: a warp of
// each has the pages of all its units copied ahead, without a pause between units, and four warps
// multiply. A second kernel joins the parts of a query.
//
// Every query has the operations of sm80/attention/paged_attention_tiles.cu in their order, so the
// bits are the same.
namespace recurve::cuda::sm90 {
namespace {

using namespace attention_steps;  // NOLINT: this kernel's own

// What the warp that copies does.
template <int kD>
__device__ void load_pages(const PagedAttentionArgs& a, const CUtensorMap& keys,
                           const CUtensorMap& values, UnitWalk walk, Shared<kD>& s) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  struct Pages {
    int head, count;
    int32_t keys, values;  // lane i has those of page i
  };
  const auto pages_of = [&](const UnitWalk& unit) {
    Pages pages{unit.head(), unit.pages(), 0, 0};
    if (lane < pages.count) {
      const int index = unit.first_page() + lane;
      pages.keys = sm80::page_of(a.keys, unit.session().slot, index);
      pages.values = sm80::page_of(a.values, unit.session().slot, index);
    }
    return pages;
  };
  PageRing<Shared<kD>::kStages> ring;
  Pages next{};
  if (walk.has_unit()) next = pages_of(walk);
  while (walk.has_unit()) {
    const Pages pages = next;
    walk.step();
    if (walk.has_unit()) next = pages_of(walk);
    for (int i = 0; i < pages.count; ++i) {
      const int key_page = __shfl_sync(0xffffffffu, pages.keys, i);
      const int value_page = __shfl_sync(0xffffffffu, pages.values, i);
      fill_stage(s, ring, [&](void* to, Barrier* full) {
        load_boxes(to, keys, key_page, pages.head * kD, full, Keep::kFirstOut);
      });
      fill_stage(s, ring, [&](void* to, Barrier* full) {
        load_page_boxes(to, values, value_page, pages.head * kPage, full, Keep::kFirstOut);
      });
    }
  }
}

// As many blocks as the card holds at once.
template <int kD>
__global__ void __launch_bounds__(kThreads, Shared<kD>::kBlocks)
    attend_steps_kernel(const __grid_constant__ CUtensorMap keys,
                        const __grid_constant__ CUtensorMap values,
                        const __grid_constant__ PagedAttentionArgs a,
                        const __grid_constant__ UnitMemory memory) {
  extern __shared__ __align__(1024) std::byte step_memory[];
  Shared<kD>& s = *reinterpret_cast<Shared<kD>*>(step_memory);
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kWarpSize, 0);
  let_next_start();
  if (threadIdx.x == 0) {
    prefetch_map(keys);
    prefetch_map(values);
    for (int i = 0; i < Shared<kD>::kStages; ++i) {
      init_barrier(&s.full[i], 1);
      init_barrier(&s.empty[i], kWarps);
    }
    publish_barriers();
  }
  wait_for_previous();
  const Share share = share_of_block(a, memory, s.share);
  const UnitWalk walk(a, share);
  if (warp == kWarps) {
    load_pages<kD>(a, keys, values, walk, s);
  } else {
    StepTile<kD>(a, memory, s).run(walk, share.whole);
  }
}

constexpr int kJoinThreads = 128;
constexpr int kJoinedAtOnce = 16;  // parts whose sums a thread loads before it joins the first

// Blocks: rows x heads. Threads have two channels each. The bounds of kJoinThreads parts are found
// at once, so no value waits for a scale.
__global__ void __launch_bounds__(kJoinThreads)
    join_steps_kernel(const __grid_constant__ PagedAttentionArgs a, UnitMemory memory) {
  __shared__ sm80::PartScales scales[kJoinThreads];
  __shared__ float weights_of[kJoinThreads], bounds_of_warps[kJoinThreads / kWarpSize];
  let_next_start();
  wait_for_previous();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize;
  const int64_t row = blockIdx.x / a.H;
  const int head = static_cast<int>(blockIdx.x % a.H), shared_by = a.H / a.HK;
  const bool single = a.seqs.rows == a.seqs.num_seqs;  // rows
  const int number = single ? static_cast<int>(row) : sm80::sequence_of(a.seqs, row);
  const int before = memory.units_before[number], after = memory.units_before[number + 1];
  const int all_units = memory.units_before[a.seqs.num_seqs];
  const int begin = a.seqs.begin[number], end = a.seqs.begin[number + 1];
  const int position = a.position[row];
  float* const o = a.o + (row * a.H + head) * a.D;
  if (!has_few_queries(a, end - begin)) return;
  if (before == after) {
    for (int d = thread; d < a.D; d += kJoinThreads) o[d] = 0;
    return;
  }
  if (all_units > memory.most) return;
  const int parts = position / kAttentionPart + 1, parts_of_tile = (after - before) / a.HK;
  const int query = static_cast<int>(row - begin) * shared_by + head % shared_by;
  const float* part = memory.at(a, before + head / shared_by * parts_of_tile, query);
  const int64_t step = static_cast<int64_t>(memory.queries) * (a.D + 2);
  const int d = 2 * thread;
  float bound = -INFINITY, weights = 0;
  float2 all = make_float2(0, 0);
  for (int first = 0; first < parts; first += kJoinThreads, part += kJoinThreads * step) {
    const int count = min(kJoinThreads, parts - first);
    float2 sums[kJoinedAtOnce] = {};
    const auto load_sums = [&](int p) {
#pragma unroll
      for (int i = 0; i < kJoinedAtOnce; ++i) {
        if (p + i >= count || d >= a.D) continue;
        sums[i] = *reinterpret_cast<const float2*>(part + (p + i) * step + 2 + d);
      }
    };
    load_sums(0);
    const float mine = thread < count ? part[thread * step] : -INFINITY;
    weights_of[thread] = thread < count ? part[thread * step + 1] : 0;
    float joined = mine;
#pragma unroll
    for (int offset = 1; offset < kWarpSize; offset *= 2) {
      const float other = __shfl_up_sync(0xffffffffu, joined, offset);
      if (lane >= offset) joined = max_of(joined, other);
    }
    if (lane == kWarpSize - 1) bounds_of_warps[thread / kWarpSize] = joined;
    float ahead = __shfl_up_sync(0xffffffffu, joined, 1);
    if (lane == 0) ahead = -INFINITY;
    __syncthreads();
    float of_warps_before = bound;
#pragma unroll
    for (int warp = 0; warp < kJoinThreads / kWarpSize; ++warp) {
      if (warp < thread / kWarpSize) {
        of_warps_before = max_of(of_warps_before, bounds_of_warps[warp]);
      }
      bound = max_of(bound, bounds_of_warps[warp]);
    }
    ahead = max_of(ahead, of_warps_before);
    joined = max_of(joined, of_warps_before);
    scales[thread] = first + thread == 0
                         ? sm80::PartScales{0, 1}
                         : sm80::PartScales{sm80::power_of_two(__fsub_rn(ahead, joined)),
                                            sm80::power_of_two(__fsub_rn(mine, joined))};
    __syncthreads();
    for (int p = 0; p < count; p += kJoinedAtOnce) {
      if (p > 0) load_sums(p);
#pragma unroll
      for (int i = 0; i < kJoinedAtOnce; ++i) {
        if (p + i >= count) continue;
        const sm80::PartScales scale = scales[p + i];
        weights = scale.join(weights, weights_of[p + i]);
        all.x = scale.join(all.x, sums[i].x);
        all.y = scale.join(all.y, sums[i].y);
      }
    }
    __syncthreads();
  }
  if (d >= a.D) return;
  const float reciprocal = __fdiv_rn(1.0f, weights);
  o[d] = sm80::finished(all.x, reciprocal, sm80::gate_of(a, row, head, d));
  o[d + 1] = sm80::finished(all.y, reciprocal, sm80::gate_of(a, row, head, d + 1));
}

template <int kD>
void launch(const PagedAttentionArgs& a, Stream& stream) {
  const auto& cuda_stream = static_cast<const CudaStream&>(stream);
  const auto scratch = cuda_stream.scratch();
  const size_t header =
      ceil_div(sizeof(int) * (static_cast<size_t>(a.seqs.num_seqs) + 1), size_t{256}) * 256;
  const int queries = std::min(kStepQueries, a.seqs.max_len * (a.H / a.HK));
  const size_t unit_bytes = sizeof(float) * static_cast<size_t>(queries) * (kD + 2);
  const UnitMemory memory{reinterpret_cast<int*>(scratch.data()),
                          reinterpret_cast<float*>(scratch.data() + header),
                          static_cast<int64_t>((scratch.size() - header) / unit_bytes), queries};
  const int64_t parts = ceil_div(int64_t{a.keys.most} * kPageTokens, int64_t{kAttentionPart});
  const int64_t blocks = std::min(int64_t{Shared<kD>::kBlocks} * cuda_stream.multiprocessors(),
                                  parts * a.seqs.num_seqs * a.HK);
  const auto kernel = attend_steps_kernel<kD>;
  use(stream);
  abort_if_failed(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                       cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(sizeof(Shared<kD>))),
                  "paged_attention");
  launch_early(
      stream, "paged_attention", kernel,
      {.grid = static_cast<unsigned>(blocks), .threads = kThreads, .shared = sizeof(Shared<kD>)},
      key_page_map(a.keys, a.HK, a.D), value_page_map(a.values, a.HK, a.D), a, memory);
  launch_early(stream, "paged_attention, join", join_steps_kernel,
               {.grid = static_cast<unsigned>(static_cast<int64_t>(a.seqs.rows) * a.H),
                .threads = kJoinThreads},
               a, memory);
}

}  // namespace

void attend_in_steps(const PagedAttentionArgs& args, Stream& stream) {
  if (args.D == 64) {
    launch<64>(args, stream);
  } else if (args.D == 128) {
    launch<128>(args, stream);
  } else {
    launch<256>(args, stream);
  }
}

}  // namespace recurve::cuda::sm90
