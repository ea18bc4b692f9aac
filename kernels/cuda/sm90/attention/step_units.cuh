#pragma once
#include "kernels/cuda/sm80/attention/query_tiles.cuh"
#include "kernels/cuda/sm90/attention/paged_attention.h"

// How the keys of all sequences are shared over blocks: see paged_attention_steps.cu.
namespace recurve::cuda::sm90::attention_steps {

using sm80::kPage;
using sm80::kPartPages;

constexpr int kWarps = 4;  // of products; one more copies
constexpr int kTileThreads = kWarpSize * kWarps, kThreads = kTileThreads + kWarpSize;

// The rows of a sequence that a call brings: none where its queries are too many for steps.
struct Session {
  int begin, rows, slot, position;  // position: of the first row

  __device__ int last_position() const { return position + rows - 1; }
  __device__ int parts() const {
    return slot == 0 || rows == 0 ? 0 : last_position() / kAttentionPart + 1;
  }
};
__device__ inline Session session_at(const PagedAttentionArgs& a, int number) {
  const bool single = a.seqs.rows == a.seqs.num_seqs;  // rows
  const int begin = single ? number : a.seqs.begin[number];
  const int end = single ? number + 1 : a.seqs.begin[number + 1];
  if (!single && (begin == end || !has_few_queries(a, end - begin))) return {begin, 0, 0, 0};
  return {begin, end - begin, a.seqs.slot[number], a.position[begin]};
}

// What blocks leave of each unit: of each query the bound of scores, the sum of weights and D sums
// of values. Where there are more units than it holds, each block attends to all parts of the
// queries it begins with, one after the other, and has memory for what is joined so far.
struct UnitMemory {
  int* units_before;  // (sequences + 1) of a sequence
  float* data;
  int64_t most;  // units
  int queries;   // of a unit, at most

  __device__ float* at(const PagedAttentionArgs& a, int64_t unit, int query) const {
    return data + (unit * queries + query) * (a.D + 2);
  }
};

// What share_of_block() has in shared memory.
struct ShareMemory {
  int units_of_warps[kThreads / kWarpSize];
  int sequence, before;  // of the block's first unit, and the units of sequences before it
};

// The units [first, end) of a block. The first is of a sequence before which there are `before`.
struct Share {
  int first, end, sequence, before;
  bool whole;  // queries
};

// All threads of the block.
__device__ inline Share share_of_block(const PagedAttentionArgs& a, const UnitMemory& memory,
                                       ShareMemory& s) {
  const int n = a.seqs.num_seqs, thread = static_cast<int>(threadIdx.x);
  const int each = (n + kThreads - 1) / kThreads;
  const int from = min(n, thread * each), to = min(n, from + each);
  int mine = 0;
#pragma unroll 4
  for (int i = from; i < to; ++i) mine += a.HK * session_at(a, i).parts();
  int before = mine;
#pragma unroll
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, before, offset);
    if (thread % kWarpSize >= offset) before += other;
  }
  if (thread % kWarpSize == kWarpSize - 1) s.units_of_warps[thread / kWarpSize] = before;
  before -= mine;
  __syncthreads();
  int all = 0;
#pragma unroll
  for (int warp = 0; warp < kThreads / kWarpSize; ++warp) {
    if (warp == thread / kWarpSize) before += all;
    all += s.units_of_warps[warp];
  }
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  const int first = block * (all / blocks) + min(block, all % blocks);
  const int end = first + all / blocks + (block < all % blocks ? 1 : 0);
  const bool has_first = before <= first && first < before + mine;
  if (block == 0 || has_first) {
    for (int i = from; i < to; ++i) {
      const int units = a.HK * session_at(a, i).parts();
      if (block == 0) memory.units_before[i] = before;
      if (before <= first && first < before + units) s.sequence = i, s.before = before;
      before += units;
    }
  }
  if (block == 0 && thread == 0) memory.units_before[n] = all;
  __syncthreads();
  return {first, end, s.sequence, s.before, all > memory.most};
}

// Goes through a block's units.
class UnitWalk {
 public:
  __device__ UnitWalk(const PagedAttentionArgs& a, const Share& share)
      : a_(a), end_(share.end), number_(share.first), whole_(share.whole) {
    if (share.first >= share.end) return;
    sequence_ = share.sequence;
    session_ = session_at(a, sequence_);
    const int unit = share.first - share.before;
    head_ = unit / session_.parts();
    part_ = unit % session_.parts();
    while (whole_ && part_ != 0) step();
  }
  __device__ bool has_unit() const { return number_ < end_ || (whole_ && part_ != 0); }
  __device__ void step() {
    ++number_;
    if (++part_ < session_.parts()) return;
    part_ = 0;
    if (++head_ < a_.HK) return;
    head_ = 0;
    do {
      if (++sequence_ == a_.seqs.num_seqs) return;
      session_ = session_at(a_, sequence_);
    } while (session_.parts() == 0);
  }

  __device__ const Session& session() const { return session_; }
  __device__ int number() const { return number_; }
  __device__ int head() const { return head_; }
  __device__ int part() const { return part_; }
  __device__ int first_page() const { return part_ * kPartPages; }
  __device__ int pages() const {
    return min(kPartPages, session_.last_position() / kPage + 1 - first_page());
  }

 private:
  const PagedAttentionArgs& a_;
  const int end_;
  Session session_{};
  int number_, sequence_ = 0, head_ = 0, part_ = 0;
  const bool whole_;
};

}  // namespace recurve::cuda::sm90::attention_steps
