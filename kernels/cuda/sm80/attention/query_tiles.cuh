#pragma once
#include "kernels/ceil_div.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/ops/paged_attention.h"

// How rows of sequences are cut into tiles of queries that share keys, and keys into parts.
namespace recurve::cuda::sm80 {

constexpr int kPage = static_cast<int>(kPageTokens);
constexpr int kPartPages = kAttentionPart / kPage;

// Rows [begin, end) of a sequence, at these positions. Parts of all its rows before `row`.
struct Sequence {
  int begin, end, slot;
  int position;  // of the first row

  __device__ int64_t parts_before(int64_t row) const {
    return parts_to(position + (row - begin)) - parts_to(position);
  }

 private:
  // Of rows at positions 0 to `count` - 1.
  __device__ static int64_t parts_to(int64_t count) {
    const int64_t full = count / kAttentionPart, rest = count % kAttentionPart;
    return kAttentionPart * (full * (full + 1) / 2) + rest * (full + 1);
  }
};
__device__ inline Sequence sequence_at(const PagedAttentionArgs& a, int number) {
  const int begin = a.seqs.begin[number];
  return {begin, a.seqs.begin[number + 1], a.seqs.slot[number], a.position[begin]};
}

// The parts of all rows of sequences before this one. All lanes of a warp.
__device__ inline int64_t parts_before(const PagedAttentionArgs& a, int number) {
  int64_t all = 0;
  for (int i = threadIdx.x % kWarpSize; i < number; i += kWarpSize) {
    const Sequence seq = sequence_at(a, i);
    if (seq.slot != 0) all += seq.parts_before(seq.end);
  }
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    all += __shfl_xor_sync(0xffffffffu, all, offset);
  }
  return all;
}

// What parts leave where several blocks share the parts of a tile: of each part of each row, in
// their order, the bound of scores, the sum of weights and D sums of values of each head. Sequences
// whose parts are more than the memory has are attended to by one block a tile.
struct PartMemory {
  float* data;
  int64_t parts;  // that there is memory for
  int splits;     // blocks of a tile; 1: none of this is used

  __device__ bool has(int64_t before, const Sequence& seq) const {
    return before + seq.parts_before(seq.end) <= parts;
  }
  __device__ float* at(const PagedAttentionArgs& a, int64_t part, int head) const {
    return data + (part * a.H + head) * (a.D + 2);
  }
};

// Queries [first, first + count) of a sequence and a head of keys.
struct Tile {
  Sequence seq;
  int number;  // of the sequence
  int shared_by, key_head;
  int first, count;

  __device__ int64_t row(int query) const { return seq.begin + (first + query) / shared_by; }
  __device__ int head(int query) const {
    return key_head * shared_by + (first + query) % shared_by;
  }
  __device__ int position(int query) const {
    return seq.position + (first + min(query, count - 1)) / shared_by;
  }
};

// Tiles before that of a sequence's first query: at least as many as there are, whatever the
// lengths of sequences are, so that a launch does not depend on them.
template <int kQueries>
__host__ __device__ int64_t tiles_before(int64_t rows, int shared_by, int sequences) {
  return rows * shared_by / kQueries + sequences;
}

// Tile number / HK, of head number % HK of keys.
template <int kQueries>
__device__ Tile tile_of(const PagedAttentionArgs& a, int64_t number) {
  const int64_t tile = number / a.HK;
  const int shared_by = a.H / a.HK;
  int low = 0, high = a.seqs.num_seqs;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    const bool before = tiles_before<kQueries>(a.seqs.begin[middle], shared_by, middle) <= tile;
    (before ? low : high) = middle;
  }
  const Sequence seq = sequence_at(a, low);
  const int64_t first = (tile - tiles_before<kQueries>(seq.begin, shared_by, low)) * kQueries;
  const int64_t queries = static_cast<int64_t>(seq.end - seq.begin) * shared_by;
  const int64_t count = min(queries - first, static_cast<int64_t>(kQueries));
  return {seq,
          low,
          shared_by,
          static_cast<int>(number % a.HK),
          static_cast<int>(first),
          static_cast<int>(count)};
}

// The pages that a block goes through: all of parts first, first + step ...
struct PageWalk {
  int first, step;
  int parts, count;  // parts of the tile's last query, and pages of this block

  __device__ PageWalk(int first_part, int every, int last_position)
      : first(first_part), step(every), parts(last_position / kAttentionPart + 1) {
    const int mine = first < parts ? (parts - 1 - first) / step + 1 : 0;
    const bool has_last = mine > 0 && first + (mine - 1) * step == parts - 1;
    count = mine * kPartPages - (has_last ? parts * kPartPages - (last_position / kPage + 1) : 0);
  }
  __device__ int part(int i) const { return first + i / kPartPages * step; }
  __device__ int page(int i) const { return part(i) * kPartPages + i % kPartPages; }
};

}  // namespace recurve::cuda::sm80
