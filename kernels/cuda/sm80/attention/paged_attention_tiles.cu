#include <algorithm>

#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/attention/paged_attention.h"
#include "kernels/cuda/sm80/attention/pages.cuh"
#include "kernels/cuda/sm80/attention/part_sums.cuh"
#include "kernels/cuda/sm80/attention/query_tiles.cuh"
#include "kernels/cuda/sm80/attention/tile_values.cuh"
#include "kernels/cuda/sm80/tile.cuh"

// Attention over pages of bf16 on the tensor cores. A tile is queries of one sequence that share a
// head of keys: those of its rows, a row's heads next to each other. Queries and weights are cut
// into two bf16 values each, which leaves 2^-18 of them; keys and values are what they are.
//
// Every query goes through the pages of a part in order, with the largest score so far (Milakov and
// Gimelshein 2018; Dao 2023, sec. 3.1), and every score and every sum of a query is the same
// sequence of products, whatever the tile's other queries are and however many it has. So small
// tiles of single steps and large ones of prompts give the same bits, and parts may be joined by
// the block that computed them or by another kernel.
namespace recurve::cuda::sm80 {
namespace {

constexpr int kKeyWarps = 4;                  // side by side along the keys of a page
constexpr int kWarpKeys = kPage / kKeyWarps;  // of a warp, as two tiles of 8

// kD: channels in shared memory, with zeros behind a head's. kRowWarps x kTiles x 16 queries.
// kBuffers: pages of keys or of values in shared memory.
template <int kChannels, int kRowWarpsOf, int kTilesOf, int kBuffersOf>
struct Shape {
  static constexpr int kD = kChannels, kRowWarps = kRowWarpsOf, kTiles = kTilesOf;
  static constexpr int kBuffers = kBuffersOf;
  static constexpr int kQueries = 16 * kRowWarps * kTiles;
  static constexpr int kThreads = kWarpSize * kKeyWarps * kRowWarps;
  static constexpr int kWarpChannels = kD / kKeyWarps;
  static constexpr int kChannelTiles = kWarpChannels / 8;
  static constexpr int kPageValues = kPage * kD;
  struct Shared {
    uint16_t q[2][kQueries * kD];           // parts, the larger first, swizzled for TileMatrix
    uint16_t weights[2][kQueries * kPage];  // swizzled, too
    uint16_t pages[kBuffers][kPageValues];  // keys (kD, kPage), values (kPage, kD)
    float largest[kKeyWarps][kQueries], weights_of_warps[kKeyWarps][kQueries];
  };
};

// A block's work on its tile. Warps have 16 kTiles queries each; of these they compute the products
// with kWarpKeys keys of a page, then the sums of kWarpChannels channels. A lane has rows g and
// g + 8 of each tile of 16, see tile.cuh; its queries are numbered 2 tile + half.
template <typename S>
class TileBlock {
 public:
  static constexpr int kLaneQueries = 2 * S::kTiles;
  using Sums = float[S::kTiles][S::kChannelTiles][4];

  __device__ TileBlock(const PagedAttentionArgs& args, const Tile& tile, typename S::Shared& shared)
      : a_(args),
        tile_(tile),
        s_(shared),
        key_warp_(static_cast<int>(threadIdx.x) / kWarpSize % kKeyWarps),
        first_query_(static_cast<int>(threadIdx.x) / kWarpSize / kKeyWarps * 16 * S::kTiles),
        lane_row_(static_cast<int>(threadIdx.x) % kWarpSize / 4),
        lane_column_(static_cast<int>(threadIdx.x) % 4 * 2),
        first_position_(tile.position(0)),
        last_position_(tile.position(tile.count - 1)) {
#pragma unroll
    for (int i = 0; i < kLaneQueries; ++i) positions_[i] = tile.position(query(i));
  }

  __device__ void run(const PartMemory& memory, int split, int splits, int64_t parts_before) {
    const PageWalk walk(split, splits, last_position_);
    if (walk.count == 0) return;
#pragma unroll
    for (int i = 0; i < S::kBuffers - 1; ++i) load(walk, i);
    read_queries();
    Sums all;
    PartSums joined[kLaneQueries];
    for (int i = 0; i < walk.count; ++i) {
      if (i % kPartPages == 0) begin_part();
      wait_for_load();
      __syncthreads();
      load(walk, 2 * i + S::kBuffers - 1);
      weigh(s_.pages[2 * i % S::kBuffers], walk.page(i) * kPage);
      wait_for_load();
      clear_unbounded(s_.pages[(2 * i + 1) % S::kBuffers], walk.page(i) * kPage);
      load(walk, 2 * i + S::kBuffers);
      add_values(s_.pages[(2 * i + 1) % S::kBuffers]);
      if (i % kPartPages != kPartPages - 1 && i + 1 != walk.count) continue;
      end_part();
      if (splits > 1) {
        write_part(memory, parts_before, walk.part(i));
      } else {
        join(walk.part(i), joined, all);
      }
    }
    if (splits == 1) write(joined, all);
  }

 private:
  __device__ int query(int i) const { return first_query_ + i / 2 * 16 + i % 2 * 8 + lane_row_; }

  __device__ void read_queries() {
    const float scale = score_scale(a_.scale);
    constexpr int kPairs = S::kD / 2;
    for (int x = threadIdx.x; x < S::kQueries * kPairs; x += S::kThreads) {
      const int row = x / kPairs, d = x % kPairs * 2;
      float2 pair = make_float2(0, 0);
      if (row < tile_.count && d < a_.D) {
        const float* q = query_of(a_, tile_.row(row), tile_.head(row)) + d;
        pair = make_float2(__fmul_rn(q[0], scale), __fmul_rn(q[1], scale));
      }
      const int at = value_at<S::kD>(row, d / 8) + d % 8;
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        *reinterpret_cast<uint32_t*>(s_.q[part] + at) = cut_pair(pair.x, pair.y);
      }
    }
  }

  // Starts the copy of keys (even numbers) or values of a page of the walk, or of nothing behind
  // its end.
  __device__ void load(const PageWalk& walk, int number) {
    if (number < 2 * walk.count) {
      const int index = walk.page(number / 2);
      uint16_t* const to = s_.pages[number % S::kBuffers];
      const int64_t of_head = static_cast<int64_t>(tile_.key_head) * kPage * a_.D;
      const PagedData& paged = number % 2 == 0 ? a_.keys : a_.values;
      const int32_t page = page_of(paged, tile_.seq.slot, index);
      const uint16_t* from = page_at<uint16_t>(paged, page) + of_head;
      number % 2 == 0 ? load_keys(to, from) : load_values(to, from, index * kPage);
    }
    commit_copies();
  }
  __device__ void load_keys(uint16_t* to, const uint16_t* from) {
    constexpr int kPieces = kPage / 8;
#pragma unroll 4
    for (int x = threadIdx.x; x < S::kD * kPieces; x += S::kThreads) {
      const int d = x / kPieces;
      const bool exists = d < a_.D;
      copy_16_bytes(shared_address(to + value_at<kPage>(d, x % kPieces)),
                    exists ? from + 8 * x : from, exists ? 16 : 0);
    }
  }
  // Zeros where no query of the tile sees the token: what is there may be anything.
  __device__ void load_values(uint16_t* to, const uint16_t* from, int first_key) {
    constexpr int kPieces = S::kD / 8;
#pragma unroll 4
    for (int x = threadIdx.x; x < kPage * kPieces; x += S::kThreads) {
      const int token = x / kPieces, piece = x % kPieces;
      const bool exists = 8 * piece < a_.D && first_key + token <= last_position_;
      copy_16_bytes(shared_address(to + value_at<S::kD>(token, piece)),
                    exists ? from + token * a_.D + 8 * piece : from, exists ? 16 : 0);
    }
  }
  __device__ static void wait_for_load() { wait_for_all_but<S::kBuffers - 2>(); }

  __device__ void begin_part() {
#pragma unroll
    for (int i = 0; i < kLaneQueries; ++i) bound_[i] = -INFINITY, weights_[i] = 0;
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
      for (int n = 0; n < S::kChannelTiles; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) sums_[t][n][c] = 0;
      }
    }
  }

  // The weights of a page's keys, to shared memory, once the sums before are scaled to the new
  // largest score.
  __device__ void weigh(const uint16_t* keys, int first_key) {
    float scores[S::kTiles][2][4];
    multiply_keys(keys, scores);
#pragma unroll
    for (int i = 0; i < kLaneQueries; ++i) {
      float largest = -INFINITY;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        float& score = scores[i / 2][c / 2][i % 2 * 2 + c % 2];
        const int key = first_key + kWarpKeys * key_warp_ + c / 2 * 8 + lane_column_ + c % 2;
        if (key > positions_[i]) score = -INFINITY;
        largest = max_of(largest, score);
      }
      largest = quad_max(largest);
      if (lane_column_ == 0) s_.largest[key_warp_][query(i)] = largest;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kLaneQueries; ++i) {
      float largest = s_.largest[0][query(i)];
#pragma unroll
      for (int w = 1; w < kKeyWarps; ++w) largest = max_of(largest, s_.largest[w][query(i)]);
      const float bound = max_of(bound_[i], ceilf(largest)), origin = origin_of(bound);
      const float scale = power_of_two(__fsub_rn(bound_[i], bound));
      bound_[i] = bound;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float* score = scores[i / 2][n] + i % 2 * 2;
        float x = weight_of(score[0], origin), y = weight_of(score[1], origin);
        sum = __fadd_rn(sum, __fadd_rn(x, y));
        const int at = value_at<kPage>(query(i), kWarpKeys / 8 * key_warp_ + n) + lane_column_;
        *reinterpret_cast<uint32_t*>(s_.weights[0] + at) = cut_pair(x, y);
        *reinterpret_cast<uint32_t*>(s_.weights[1] + at) = cut_pair(x, y);
      }
      weights_[i] = __fmaf_rn(weights_[i], scale, sum);
#pragma unroll
      for (int n = 0; n < S::kChannelTiles; ++n) {
        float* of_row = sums_[i / 2][n] + i % 2 * 2;
        of_row[0] = __fmul_rn(of_row[0], scale);
        of_row[1] = __fmul_rn(of_row[1], scale);
      }
    }
  }

  __device__ void multiply_keys(const uint16_t* keys, float (&scores)[S::kTiles][2][4]) {
    const TileMatrix<S::kD> q[2] = {TileMatrix<S::kD>(s_.q[0]), TileMatrix<S::kD>(s_.q[1])};
    const TileMatrix<kPage> k(keys);
    for_each_score([&](int t, int n, int c) { scores[t][n][c] = 0; });
#pragma unroll 4
    for (int d = 0; d < S::kD; d += 16) {
      uint32_t b[4];
      k.load_right_as_it_lies(b, d, kWarpKeys * key_warp_);
#pragma unroll
      for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
        for (int part = 1; part >= 0; --part) {
          uint32_t a[4];
          q[part].load_left(a, first_query_ + 16 * t, d);
          multiply_bf16(scores[t][0], a, b[0], b[1]);
          multiply_bf16(scores[t][1], a, b[2], b[3]);
        }
      }
    }
  }
  template <typename Visit>
  __device__ static void for_each_score(Visit visit) {
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
      for (int c = 0; c < 8; ++c) visit(t, c / 4, c % 4);
    }
  }

  // Waits for all threads, and sees that no value that some query of the tile does not see is
  // infinite or NaN, as it would be multiplied by 0. Sums of queries that see it become NaN.
  __device__ void clear_unbounded(uint16_t* values, int first_key) {
    constexpr int kPieces = S::kD / 8;
    const bool seen_by_all = first_key + kPage - 1 <= first_position_;
    bool found = false;
    if (!seen_by_all) {
      for (int x = threadIdx.x; x < kPage * kPieces; x += S::kThreads) {
        const int token = x / kPieces;
        if (first_key + token <= first_position_) continue;
        const uint16_t* piece = values + value_at<S::kD>(token, x % kPieces);
        found |= has_unbounded(*reinterpret_cast<const uint4*>(piece));
      }
    }
    if (__syncthreads_or(found) == 0) return;
    for (int token = 0; token < kPage; ++token) {
      if (first_key + token > first_position_) spoil_sums(values, token, first_key + token);
    }
    __syncthreads();
    for (int x = threadIdx.x; x < kPage * kPieces; x += S::kThreads) {
      const int token = x / kPieces;
      if (first_key + token <= first_position_) continue;
      uint4& piece = *reinterpret_cast<uint4*>(values + value_at<S::kD>(token, x % kPieces));
      piece = bounded(piece);
    }
    __syncthreads();
  }
  __device__ void spoil_sums(const uint16_t* values, int token, int key) {
#pragma unroll
    for (int n = 0; n < S::kChannelTiles; ++n) {
      const int at = value_at<S::kD>(token, key_warp_ * S::kChannelTiles + n) + lane_column_;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if (!is_unbounded(values[at + c])) continue;
#pragma unroll
        for (int i = 0; i < kLaneQueries; ++i) {
          if (key <= positions_[i]) sums_[i / 2][n][i % 2 * 2 + c] = NAN;
        }
      }
    }
  }

  __device__ void add_values(const uint16_t* values) {
    const TileMatrix<kPage> large(s_.weights[0]), small(s_.weights[1]);
    const TileMatrix<S::kD> v(values);
#pragma unroll
    for (int j = 0; j < kPage; j += 16) {
      uint32_t large_w[S::kTiles][4], small_w[S::kTiles][4];
#pragma unroll
      for (int t = 0; t < S::kTiles; ++t) {
        large.load_left(large_w[t], first_query_ + 16 * t, j);
        small.load_left(small_w[t], first_query_ + 16 * t, j);
      }
#pragma unroll
      for (int n = 0; n < S::kChannelTiles; n += 2) {
        uint32_t b[4];
        v.load_right_as_it_lies(b, j, S::kWarpChannels * key_warp_ + 8 * n);
#pragma unroll
        for (int t = 0; t < S::kTiles; ++t) {
          multiply_bf16(sums_[t][n], large_w[t], b[0], b[1]);
          multiply_bf16(sums_[t][n + 1], large_w[t], b[2], b[3]);
          multiply_bf16(sums_[t][n], small_w[t], b[0], b[1]);
          multiply_bf16(sums_[t][n + 1], small_w[t], b[2], b[3]);
        }
      }
    }
  }

  // The sums of weights of the part, of which each lane has those of its keys so far.
  __device__ void end_part() {
#pragma unroll
    for (int i = 0; i < kLaneQueries; ++i) {
      const float sum = quad_sum(weights_[i]);
      if (lane_column_ == 0) s_.weights_of_warps[key_warp_][query(i)] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kLaneQueries; ++i) {
      weights_[i] = s_.weights_of_warps[0][query(i)];
#pragma unroll
      for (int w = 1; w < kKeyWarps; ++w) {
        weights_[i] = __fadd_rn(weights_[i], s_.weights_of_warps[w][query(i)]);
      }
    }
  }

  // Calls visit(i, query) for the queries of this lane that there are and that see the part.
  template <typename Visit>
  __device__ void for_each_query(int part, Visit visit) const {
#pragma unroll
    for (int i = 0; i < kLaneQueries; ++i) {
      const bool sees = part * kAttentionPart <= positions_[i];
      if (query(i) < tile_.count && sees) visit(i, query(i));
    }
  }
  // Calls visit(channel tile, element, channel) for those of a query.
  template <typename Visit>
  __device__ void for_each_channel(int i, Visit visit) const {
#pragma unroll
    for (int n = 0; n < S::kChannelTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int d = S::kWarpChannels * key_warp_ + 8 * n + lane_column_ + c;
        if (d < a_.D) visit(n, i % 2 * 2 + c, d);
      }
    }
  }

  __device__ void write_part(const PartMemory& memory, int64_t parts_before, int part) const {
    for_each_query(part, [&](int i, int query) {
      const int64_t at = parts_before + tile_.seq.parts_before(tile_.row(query)) + part;
      float* to = memory.at(a_, at, tile_.head(query));
      if (key_warp_ == 0 && lane_column_ == 0) to[0] = bound_[i], to[1] = weights_[i];
      for_each_channel(i, [&](int n, int c, int d) { to[2 + d] = sums_[i / 2][n][c]; });
    });
  }

  __device__ void join(int part, PartSums (&joined)[kLaneQueries], Sums& all) const {
    for_each_query(part, [&](int i, int) {
      const PartScales scales = joined[i].join(part == 0, bound_[i], weights_[i]);
      for_each_channel(i, [&](int n, int c, int) {
        const float sum = sums_[i / 2][n][c];
        all[i / 2][n][c] = part == 0 ? sum : scales.join(all[i / 2][n][c], sum);
      });
    });
  }

  __device__ void write(const PartSums (&joined)[kLaneQueries], const Sums& all) const {
    for_each_query(0, [&](int i, int query) {
      const int64_t row = tile_.row(query);
      const int head = tile_.head(query);
      for_each_channel(i, [&](int n, int c, int d) {
        a_.o[(row * a_.H + head) * a_.D + d] =
            finished(all[i / 2][n][c], joined[i].reciprocal(), gate_of(a_, row, head, d));
      });
    });
  }

  const PagedAttentionArgs& a_;
  const Tile& tile_;
  typename S::Shared& s_;
  const int key_warp_, first_query_, lane_row_, lane_column_;
  const int first_position_, last_position_;
  int positions_[kLaneQueries];
  float bound_[kLaneQueries], weights_[kLaneQueries];  // of the part so far
  Sums sums_;
};

// Blocks: tiles of queries x heads of keys, x splits.
template <typename S>
__global__ void __launch_bounds__(S::kThreads)
    attend_tiles_kernel(const __grid_constant__ PagedAttentionArgs a, PartMemory memory) {
  extern __shared__ uint4 bytes[];
  let_next_start();
  wait_for_previous();
  // The last tiles, which have most to do, come first.
  const Tile tile = tile_of<S::kQueries>(a, gridDim.x - 1 - blockIdx.x);
  if (tile.count <= 0) return;
  const int split = static_cast<int>(blockIdx.y);
  if (tile.seq.slot == 0) {
    if (memory.splits > 1) return;  // join_kernel writes zeros
    for (int x = threadIdx.x; x < tile.count * a.D; x += S::kThreads) {
      const int query = x / a.D;
      a.o[(tile.row(query) * a.H + tile.head(query)) * a.D + x % a.D] = 0;
    }
    return;
  }
  int64_t before = 0;
  int splits = memory.splits;
  if (splits > 1) {
    before = parts_before(a, tile.number);
    if (!memory.has(before, tile.seq)) {
      if (split > 0) return;
      splits = 1;
    }
  }
  TileBlock<S>(a, tile, *reinterpret_cast<typename S::Shared*>(bytes))
      .run(memory, split, splits, before);
}

constexpr int kJoinThreads = 128;

// Blocks: rows x heads.
__global__ void __launch_bounds__(kJoinThreads)
    join_kernel(const __grid_constant__ PagedAttentionArgs a, PartMemory memory) {
  let_next_start();
  wait_for_previous();
  const int64_t row = blockIdx.x / a.H;
  const int head = static_cast<int>(blockIdx.x % a.H);
  const int number = sequence_of(a.seqs, row);
  const Sequence seq = sequence_at(a, number);
  float* const o = a.o + (row * a.H + head) * a.D;
  if (seq.slot == 0) {
    for (int d = threadIdx.x; d < a.D; d += kJoinThreads) o[d] = 0;
    return;
  }
  const int64_t before = parts_before(a, number);
  if (!memory.has(before, seq)) return;
  const int64_t parts = (seq.position + row - seq.begin) / kAttentionPart + 1;
  const float* part = memory.at(a, before + seq.parts_before(row), head);
  const int64_t step = static_cast<int64_t>(a.H) * (a.D + 2);
  constexpr int kMine = kMostTiledChannels / kJoinThreads;
  float all[kMine] = {};
  PartSums sums;
#pragma unroll 4
  for (int64_t p = 0; p < parts; ++p, part += step) {
    const PartScales scales = sums.join(p == 0, part[0], part[1]);
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int d = i * kJoinThreads + static_cast<int>(threadIdx.x);
      if (d >= a.D) continue;
      all[i] = p == 0 ? part[2 + d] : scales.join(all[i], part[2 + d]);
    }
  }
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int d = i * kJoinThreads + static_cast<int>(threadIdx.x);
    if (d < a.D) o[d] = finished(all[i], sums.reciprocal(), gate_of(a, row, head, d));
  }
}

// So many blocks are there for a multiprocessor where a tile's parts are shared out.
constexpr int kBlocksForEach = 4;

template <typename S>
void launch(const PagedAttentionArgs& a, Stream& stream) {
  const auto& cuda_stream = static_cast<const CudaStream&>(stream);
  const int shared_by = a.H / a.HK;
  const int64_t tiles = tiles_before<S::kQueries>(a.seqs.rows, shared_by, a.seqs.num_seqs);
  const int64_t busy = std::max<int64_t>(
      a.seqs.num_seqs, static_cast<int64_t>(a.seqs.rows) * shared_by / S::kQueries);
  const int64_t wanted = int64_t{kBlocksForEach} * cuda_stream.multiprocessors() / (busy * a.HK);
  const int64_t parts = ceil_div(int64_t{a.keys.most} * kPageTokens, int64_t{kAttentionPart});
  const int64_t splits = std::clamp<int64_t>(wanted, 1, parts);
  const auto scratch = cuda_stream.scratch();
  const int64_t part_bytes = int64_t{sizeof(float)} * a.H * (a.D + 2);
  const PartMemory memory{reinterpret_cast<float*>(scratch.data()),
                          static_cast<int64_t>(scratch.size()) / part_bytes,
                          static_cast<int>(splits)};
  const auto kernel = attend_tiles_kernel<S>;
  constexpr size_t kShared = sizeof(typename S::Shared);
  abort_if_failed(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared)),
      "paged_attention");
  launch_early(stream, "paged_attention", kernel,
               {.grid = dim3(static_cast<unsigned>(tiles * a.HK), static_cast<unsigned>(splits)),
                .threads = S::kThreads,
                .shared = kShared},
               a, memory);
  if (splits == 1) return;
  launch_early(stream, "paged_attention, join", join_kernel,
               {.grid = static_cast<unsigned>(static_cast<int64_t>(a.seqs.rows) * a.H),
                .threads = kJoinThreads},
               a, memory);
}

// The largest shape that a block has memory for: small tiles where a sequence's queries fill no
// more.
template <int kD>
void launch_channels(const PagedAttentionArgs& a, Stream& stream) {
  const size_t most = most_shared_memory("paged_attention");
  const bool small = static_cast<int64_t>(a.seqs.max_len) * (a.H / a.HK) <= 16;
  const auto fits = [&]<typename S>() {
    if (sizeof(typename S::Shared) > most) return false;
    launch<S>(a, stream);
    return true;
  };
  const bool large_done = !small && (fits.template operator()<Shape<kD, 2, 2, 3>>() ||
                                     fits.template operator()<Shape<kD, 2, 2, 2>>());
  if (large_done || fits.template operator()<Shape<kD, 1, 1, 4>>()) return;
  launch<Shape<kD, 1, 1, 2>>(a, stream);
}

}  // namespace

void attend_by_tiles(const PagedAttentionArgs& args, Stream& stream) {
  if (args.D <= 64) {
    launch_channels<64>(args, stream);
  } else if (args.D <= 128) {
    launch_channels<128>(args, stream);
  } else {
    launch_channels<kMostTiledChannels>(args, stream);
  }
}

}  // namespace recurve::cuda::sm80
