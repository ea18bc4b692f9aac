#pragma once
#include <algorithm>

#include "kernels/cuda/sm80/attention/pages.cuh"
#include "kernels/cuda/sm80/attention/part_sums.cuh"
#include "kernels/cuda/sm80/attention/query_tiles.cuh"
#include "kernels/cuda/sm80/attention/tile_values.cuh"
#include "kernels/cuda/sm90/async.cuh"
#include "kernels/cuda/sm90/attention/page_ring.cuh"
#include "kernels/cuda/sm90/attention/paged_attention.h"
#include "kernels/cuda/sm90/bulk.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

// The products of a block's tiles: see paged_attention_prompts.cu.
namespace recurve::cuda::sm90::attention_prompts {

using sm80::kPage;
using sm80::kPartPages;
using sm80::PageWalk;
using sm80::PartScales;
using sm80::PartSums;
using sm80::Tile;
using sm80::value_at;

constexpr int kGroups = 2, kGroupThreads = 128, kGroupQueries = 64;
constexpr int kQueries = kGroups * kGroupQueries;
static_assert(kQueries == kPromptQueries);
constexpr int kTileThreads = kGroups * kGroupThreads;
constexpr int kThreads = kTileThreads + kGroupThreads;
constexpr int kTileRegisters = 232, kOtherRegisters = 40;

// Where a thread has its sums of values of the parts before: in kD / 8 fours where not in
// registers.
enum class Joined { kRegisters, kShared, kMemory };
template <int kD>
constexpr Joined kJoined = kD == 64    ? Joined::kRegisters
                           : kD == 128 ? Joined::kShared
                                       : Joined::kMemory;
template <int kD>
constexpr size_t kJoinedBytes =
    kJoined<kD> == Joined::kMemory ? sizeof(float) * kQueries * kD : 0;  // of a block

struct PromptArgs {
  PagedAttentionArgs a;
  float4* joined;
  int64_t tiles;  // of all sequences and heads of keys, at most
};
__device__ inline PageWalk walk_of(const Tile& tile) {
  return PageWalk(0, 1, tile.position(tile.count - 1));
}

template <int kD>
struct Shared {
  static constexpr int kValues = kPage * kD;  // of keys, or of values, of a page
  static constexpr uint32_t kBytes = sizeof(uint16_t) * kValues;
  static constexpr int kStages = std::min<int>(8, (96 << 10) / kBytes);
  alignas(1024) uint16_t q[2][kGroups][kGroupQueries * kD];  // parts, by 64 channels
  uint16_t stages[kStages][kValues];  // keys (kD, kPage); values by 64 channels
  float4 joined[kGroups][kJoined<kD> == Joined::kShared ? kD / 8 * kGroupThreads : 1];
  Tile tiles[kGroups];  // while registers are for sums
  Barrier full[kStages], empty[kStages];
};

// Calls visit(tile) for each of the block's tiles. The tiles that have most to do come first, and
// blocks take them forth and back, so that each has its share. Depends on their number alone.
template <typename Visit>
__device__ void for_each_tile(const PromptArgs& args, Visit visit) {
  const int64_t blocks = gridDim.x, block = blockIdx.x;
  for (int64_t round = 0; round * blocks < args.tiles; ++round) {
    const int64_t number = round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
    if (number >= args.tiles) continue;
    const Tile tile = sm80::tile_of<kQueries>(args.a, args.tiles - 1 - number);
    if (tile.count <= 0 || has_few_queries(args.a, tile.seq.end - tile.seq.begin)) continue;
    visit(tile);
  }
}

__device__ inline void sync_group(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(2 + group), "n"(kGroupThreads) : "memory");
}

// What products left in these registers is not read before.
template <int kCount>
__device__ inline void settle(float (&d)[kCount]) {
#pragma unroll
  for (float& value : d) asm volatile("" : "+f"(value)::"memory");
}

// What a warpgroup does. A thread has two queries, rows g and g + 8 of its warp's 16, and of these
// the keys, then the channels, 8 n + 2 q and 8 n + 2 q + 1: registers 4 n + 2 i and 4 n + 2 i + 1
// of query i.
template <int kD>
class PromptGroup {
 public:
  __device__ PromptGroup(const PromptArgs& args, Shared<kD>& s, int group)
      : args_(args),
        a_(args.a),
        s_(s),
        group_(group),
        thread_(static_cast<int>(threadIdx.x) % kGroupThreads),
        lane_row_(thread_ / kWarpSize * 16 + thread_ % kWarpSize / 4),
        lane_column_(thread_ % 4 * 2) {}

  __device__ void run() {
    for_each_tile(args_,
                  [&](const Tile& tile) { tile.seq.slot != 0 ? attend(tile) : write_zeros(tile); });
  }

 private:
  static constexpr int kSums = kD / 2, kTiles = kD / 8;
  using Sums = float[kSums];

  __device__ int query(int i) const { return group_ * kGroupQueries + lane_row_ + 8 * i; }

  __device__ void write_zeros(const Tile& tile) const {
    for (int x = threadIdx.x; x < tile.count * kD; x += kTileThreads) {
      const int query = x / kD;
      a_.o[(tile.row(query) * a_.H + tile.head(query)) * kD + x % kD] = 0;
    }
  }

  __device__ void attend(const Tile& given) {
    const PageWalk walk = walk_of(given);
    sync_group(group_);  // the tile before has been read, and its queries by products
    if (thread_ == 0) s_.tiles[group_] = given;
    sync_group(group_);
    const Tile& tile = s_.tiles[group_];
    const int first_query = group_ * kGroupQueries;
    const bool has_queries = first_query < tile.count;
    first_position_ = tile.position(first_query);
    last_position_ = has_queries ? tile.position(first_query + kGroupQueries - 1) : -1;
    tile_position_ = tile.position(0);
#pragma unroll
    for (int i = 0; i < 2; ++i) positions_[i] = tile.position(query(i));
    write_queries(tile);
    Sums sums, all;
    PartSums joined[2];
    for (int i = 0; i < walk.count; ++i) {
      if (i % kPartPages == 0) begin_part(sums);
      attend_to_page(walk.page(i) * kPage, sums);
      if (i % kPartPages != kPartPages - 1 && i + 1 != walk.count) continue;
      const int part = walk.part(i);
      if (part * kAttentionPart > last_position_) continue;
      end_part();
      join(tile, part, joined, sums, all);
    }
  }

  // This group's queries, in two parts.
  __device__ void write_queries(const Tile& tile) {
    const float scale = sm80::score_scale(a_.scale);
    for (int x = thread_; x < kGroupQueries * kD / 2; x += kGroupThreads) {
      const int row = x / (kD / 2), d = x % (kD / 2) * 2, query = group_ * kGroupQueries + row;
      float2 pair = make_float2(0, 0);
      if (query < tile.count) {
        const float* q = sm80::query_of(a_, tile.row(query), tile.head(query)) + d;
        pair = make_float2(__fmul_rn(q[0], scale), __fmul_rn(q[1], scale));
      }
      const int at = d / 64 * 64 * kGroupQueries + value_at<64>(row, d % 64 / 8) + d % 8;
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        *reinterpret_cast<uint32_t*>(s_.q[part][group_] + at) = sm80::cut_pair(pair.x, pair.y);
      }
    }
    show_to_copies();  // to products, too
    sync_group(group_);
  }

  __device__ void begin_part(Sums& sums) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      bound_[i] = -INFINITY;
#pragma unroll
      for (int w = 0; w < 4; ++w) weights_[i][w] = 0;
    }
#pragma unroll
    for (float& sum : sums) sum = 0;
  }

  __device__ void attend_to_page(int first_key, Sums& sums) {
    const bool sees = first_key <= last_position_;
    float scores[32];
    wait(&s_.full[ring_.stage], ring_.parity);
    if (sees) multiply_keys(s_.stages[ring_.stage], scores);
    release_stage(s_, ring_);
    uint32_t large[4][4], small[4][4];  // weights
    if (sees) weigh(first_key, scores, large, small, sums);
    wait(&s_.full[ring_.stage], ring_.parity);
    clear_unbounded(s_.stages[ring_.stage], first_key, sums);
    if (sees) add_values(s_.stages[ring_.stage], large, small, sums);
    release_stage(s_, ring_);
  }

  __device__ void multiply_keys(const uint16_t* keys, float (&scores)[32]) const {
    const uint64_t k = operand_across(shared_address(keys), 0);
    const uint64_t large = operand(shared_address(s_.q[0][group_]));
    const uint64_t small = operand(shared_address(s_.q[1][group_]));
    begin_products();
#pragma unroll
    for (int step = 0; step < kD / 16; ++step) {
      const int q_at = step / 4 * (sizeof(uint16_t) * 64 * kGroupQueries >> 4) + step % 4 * 2;
      const int k_at = step * (2048 >> 4);
      multiply_by_across(scores, small + q_at, k + k_at, step > 0);
      multiply_by_across(scores, large + q_at, k + k_at, 1);
    }
    commit_products();
    wait_for_products<0>();
    settle(scores);
  }

  // The weights of a page's keys, in two parts as products have them on their left, once the sums
  // before are scaled to the new bounds.
  __device__ void weigh(int first_key, float (&scores)[32], uint32_t (&large)[4][4],
                        uint32_t (&small)[4][4], Sums& sums) {
    if (first_key + kPage - 1 > first_position_) {
#pragma unroll
      for (int x = 0; x < 32; ++x) {
        const int key = first_key + x / 4 * 8 + lane_column_ + x % 2;
        if (key > positions_[x / 2 % 2]) scores[x] = -INFINITY;
      }
    }
    float scales[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float largest = -INFINITY;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        largest = max_of(largest, scores[4 * n + 2 * i]);
        largest = max_of(largest, scores[4 * n + 2 * i + 1]);
      }
      largest = sm80::quad_max(largest);
      const float bound = max_of(bound_[i], ceilf(largest)), origin = sm80::origin_of(bound);
      scales[i] = sm80::power_of_two(__fsub_rn(bound_[i], bound));
      bound_[i] = bound;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        float sum = 0;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const int at = 4 * (2 * w + n) + 2 * i;
          float x = sm80::weight_of(scores[at], origin);
          float y = sm80::weight_of(scores[at + 1], origin);
          sum = __fadd_rn(sum, __fadd_rn(x, y));
          large[w][2 * n + i] = sm80::cut_pair(x, y);
          small[w][2 * n + i] = sm80::cut_pair(x, y);
        }
        weights_[i][w] = __fmaf_rn(weights_[i][w], scales[i], sum);
      }
    }
    if (!__any_sync(0xffffffffu, scales[0] != 1 || scales[1] != 1)) return;
#pragma unroll
    for (int x = 0; x < kSums; ++x) sums[x] = __fmul_rn(sums[x], scales[x / 2 % 2]);
  }

  // Where the 8 values of a token from channel 8 `piece` on are.
  __device__ static int stored_at(int token, int piece) {
    return piece / 8 * 64 * kPage + value_at<64>(token, piece % 8);
  }

  // Sees that no value that some query of the tile does not see is infinite or NaN, as it would be
  // multiplied by 0. Sums of queries that see it become NaN. Tokens that no query sees may be
  // anything. Both groups.
  __device__ void clear_unbounded(uint16_t* values, int first_key, Sums& sums) {
    constexpr int kPieces = kD / 8;
    if (first_key + kPage - 1 <= tile_position_) return;
    bool found = false;
    for (int x = threadIdx.x; x < kPage * kPieces; x += kTileThreads) {
      const int token = x / kPieces;
      if (first_key + token <= tile_position_) continue;
      const uint16_t* piece = values + stored_at(token, x % kPieces);
      found |= sm80::has_unbounded(*reinterpret_cast<const uint4*>(piece));
    }
    if (!sync_multiplying_or<kTileThreads>(found)) return;
    for (int token = 0; token < kPage; ++token) {
      if (first_key + token > tile_position_) spoil_sums(values, token, first_key + token, sums);
    }
    sync_multiplying<kTileThreads>();
    for (int x = threadIdx.x; x < kPage * kPieces; x += kTileThreads) {
      const int token = x / kPieces;
      if (first_key + token <= tile_position_) continue;
      uint4& piece = *reinterpret_cast<uint4*>(values + stored_at(token, x % kPieces));
      piece = sm80::bounded(piece);
    }
    show_to_copies();  // and to products
    sync_multiplying<kTileThreads>();
  }
  __device__ void spoil_sums(const uint16_t* values, int token, int key, Sums& sums) const {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int at = stored_at(token, n) + lane_column_;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if (!sm80::is_unbounded(values[at + c])) continue;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (key <= positions_[i]) sums[4 * n + 2 * i + c] = NAN;
        }
      }
    }
  }

  __device__ void add_values(const uint16_t* values, const uint32_t (&large)[4][4],
                             const uint32_t (&small)[4][4], Sums& sums) const {
    const uint64_t v = operand_across(shared_address(values), sizeof(uint16_t) * 64 * kPage);
    begin_products();
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      multiply(sums, large[w], v + w * (2048 >> 4), 1);
      multiply(sums, small[w], v + w * (2048 >> 4), 1);
    }
    commit_products();
    wait_for_products<0>();
    settle(sums);
  }

  // The sums of weights of the part, of which each lane has those of its keys so far.
  __device__ void end_part() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = sm80::quad_sum(weights_[i][0]);
#pragma unroll
      for (int w = 1; w < 4; ++w) sum = __fadd_rn(sum, sm80::quad_sum(weights_[i][w]));
      weights_[i][0] = sum;
    }
  }

  __device__ bool is_seen(const Tile& tile, int part, int i) const {
    return query(i) < tile.count && part * kAttentionPart <= positions_[i];
  }
  // The first channel of a lane's two of a tile.
  __device__ int channel(int n) const { return 8 * n + lane_column_; }

  // Joins a part to those before it, and writes the outputs after the group's last part.
  __device__ void join(const Tile& tile, int part, PartSums (&joined)[2], Sums& sums, Sums& all) {
    const bool is_first = part == 0, is_last = part == last_position_ / kAttentionPart;
    PartScales scales[2];
    bool seen[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      seen[i] = is_seen(tile, part, i);
      if (seen[i]) scales[i] = joined[i].join(is_first, bound_[i], weights_[i][0]);
    }
    float4* const fours = joined_fours();
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      float before[4];
      if constexpr (kJoined<kD> == Joined::kRegisters) {
#pragma unroll
        for (int c = 0; c < 4; ++c) before[c] = all[4 * n + c];
      } else if (!is_first) {
        const float4 four = fours[n * kGroupThreads + thread_];
        before[0] = four.x, before[1] = four.y, before[2] = four.z, before[3] = four.w;
      }
      float after[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float sum = sums[4 * n + c];
        after[c] = !seen[c / 2] ? before[c] : is_first ? sum : scales[c / 2].join(before[c], sum);
        if constexpr (kJoined<kD> == Joined::kRegisters) all[4 * n + c] = after[c];
        if (is_last) sums[4 * n + c] = after[c];
      }
      if (kJoined<kD> != Joined::kRegisters && !is_last) {
        fours[n * kGroupThreads + thread_] = make_float4(after[0], after[1], after[2], after[3]);
      }
    }
    if (is_last) write(tile, joined, sums);
  }
  __device__ float4* joined_fours() const {
    if constexpr (kJoined<kD> == Joined::kShared) return s_.joined[group_];
    return args_.joined +
           (static_cast<int64_t>(blockIdx.x) * kGroups + group_) * kTiles * kGroupThreads;
  }

  __device__ void write(const Tile& tile, const PartSums (&joined)[2], const Sums& all) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (query(i) >= tile.count) continue;
      const int64_t row = tile.row(query(i));
      const int head = tile.head(query(i));
      const float reciprocal = joined[i].reciprocal();
      float* const o = a_.o + (row * a_.H + head) * kD;
      const float* const gate = sm80::gate_of(a_, row, head, 0);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const int d = channel(n);
        const float* const gates = gate == nullptr ? nullptr : gate + d;
        const float x = sm80::finished(all[4 * n + 2 * i], reciprocal, gates);
        const float y = sm80::finished(all[4 * n + 2 * i + 1], reciprocal,
                                       gates == nullptr ? nullptr : gates + 1);
        *reinterpret_cast<float2*>(o + d) = make_float2(x, y);
      }
    }
  }

  const PromptArgs& args_;
  const PagedAttentionArgs& a_;
  Shared<kD>& s_;
  const int group_, thread_, lane_row_, lane_column_;
  PageRing<Shared<kD>::kStages> ring_;
  int first_position_, last_position_;  // of the group
  int tile_position_;                   // the first of the tile
  int positions_[2];
  float bound_[2], weights_[2][4];  // of the part so far; weights of 16 keys of each page
};

}  // namespace recurve::cuda::sm90::attention_prompts
