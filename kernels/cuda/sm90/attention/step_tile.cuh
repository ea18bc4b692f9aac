#pragma once
#include <algorithm>

#include "kernels/cuda/sm80/attention/pages.cuh"
#include "kernels/cuda/sm80/attention/part_sums.cuh"
#include "kernels/cuda/sm80/attention/tile_values.cuh"
#include "kernels/cuda/sm80/tile.cuh"
#include "kernels/cuda/sm90/async.cuh"
#include "kernels/cuda/sm90/attention/page_ring.cuh"
#include "kernels/cuda/sm90/attention/paged_attention.h"
#include "kernels/cuda/sm90/attention/step_units.cuh"
#include "kernels/cuda/sm90/bulk.cuh"

// The products of a block's units: see paged_attention_steps.cu.
namespace recurve::cuda::sm90::attention_steps {

using sm80::multiply_bf16;
using sm80::PartScales;
using sm80::PartSums;
using sm80::TileMatrix;
using sm80::value_at;

constexpr int kWarpKeys = kPage / kWarps;

// What a block has in shared memory for heads of so many channels.
template <int kD>
struct Shared {
  static constexpr int kValues = kPage * kD;  // of keys, or of values, of a page
  static constexpr uint32_t kBytes = sizeof(uint16_t) * kValues;
  static constexpr int kBlocks = 2;  // of a multiprocessor
  static constexpr int kStages = std::min<int>(8, (192 << 10) / kBlocks / kBytes);
  alignas(1024) uint16_t stages[kStages][kValues];  // keys (kD, kPage); values by 64 channels
  uint16_t weights[2][kStepQueries * kPage];        // swizzled for TileMatrix
  uint4 queries[kD / 16][kWarpSize];                // smaller parts, as lanes multiply them
  float largest[kWarps][kStepQueries], weights_of_warps[kWarps][kStepQueries];
  ShareMemory share;
  Barrier full[kStages], empty[kStages];
};

// What the warps that multiply do. Each has the scores of kWarpKeys keys of a page, then the sums
// of kChannels channels. A lane has the queries g and g + 8, see sm80/tile.cuh.
template <int kD>
class StepTile {
 public:
  __device__ StepTile(const PagedAttentionArgs& a, const UnitMemory& memory, Shared<kD>& s)
      : a_(a),
        memory_(memory),
        s_(s),
        warp_(static_cast<int>(threadIdx.x) / kWarpSize),
        lane_row_(static_cast<int>(threadIdx.x) % kWarpSize / 4),
        lane_column_(static_cast<int>(threadIdx.x) % 4 * 2),
        shared_by_(a.H / a.HK) {}

  __device__ void run(UnitWalk walk, bool whole) {
    bool is_first = true;
    for (; walk.has_unit(); walk.step()) {
      if (is_first || walk.part() == 0) begin_queries(walk);
      is_first = false;
      begin_part();
      const int pages = walk.pages();
      for (int i = 0; i < pages; ++i) attend_to_page((walk.first_page() + i) * kPage);
      end_part();
      if (!whole) {
        write_part(walk);
      } else {
        join_part(walk);
      }
    }
  }

 private:
  static constexpr int kSteps = kD / 16;
  static constexpr int kChannels = kD / kWarps, kChannelTiles = kChannels / 8;

  __device__ int query(int i) const { return lane_row_ + 8 * i; }
  __device__ int64_t row(int query) const { return session_.begin + query / shared_by_; }
  __device__ int head(int query) const { return key_head_ * shared_by_ + query % shared_by_; }

  __device__ void begin_queries(const UnitWalk& walk) {
    session_ = walk.session();
    key_head_ = walk.head();
    count_ = session_.rows * shared_by_;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      positions_[i] = session_.position + min(query(i), count_ - 1) / shared_by_;
    }
    const float scale = sm80::score_scale(a_.scale);
    const float* of_queries[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int q = min(query(i), count_ - 1);
      of_queries[i] = sm80::query_of(a_, row(q), head(q)) + lane_column_;
    }
    uint4 large[kSteps / kWarps], small[kSteps / kWarps];  // of this warp's steps
#pragma unroll
    for (int mine = 0; mine < kSteps / kWarps; ++mine) {
      uint32_t parts[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* q = of_queries[i % 2] + 16 * (kWarps * mine + warp_) + i / 2 * 8;
        const bool exists = query(i % 2) < count_;
        float x = exists ? __fmul_rn(q[0], scale) : 0, y = exists ? __fmul_rn(q[1], scale) : 0;
        parts[0][i] = sm80::cut_pair(x, y);
        parts[1][i] = sm80::cut_pair(x, y);
      }
      large[mine] = make_uint4(parts[0][0], parts[0][1], parts[0][2], parts[0][3]);
      small[mine] = make_uint4(parts[1][0], parts[1][1], parts[1][2], parts[1][3]);
    }
    share_queries(large);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint4 q = s_.queries[step][threadIdx.x % kWarpSize];
      large_q_[step][0] = q.x, large_q_[step][1] = q.y;
      large_q_[step][2] = q.z, large_q_[step][3] = q.w;
    }
    share_queries(small);
  }
  // Writes this warp's steps once all have read what was there.
  __device__ void share_queries(const uint4 (&mine)[kSteps / kWarps]) {
    sync_multiplying<kTileThreads>();
#pragma unroll
    for (int i = 0; i < kSteps / kWarps; ++i) {
      s_.queries[kWarps * i + warp_][threadIdx.x % kWarpSize] = mine[i];
    }
    sync_multiplying<kTileThreads>();
  }

  __device__ void begin_part() {
#pragma unroll
    for (int i = 0; i < 2; ++i) bound_[i] = -INFINITY, weights_[i] = 0;
#pragma unroll
    for (int n = 0; n < kChannelTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) sums_[n][c] = 0;
    }
  }

  __device__ void attend_to_page(int first_key) {
    float scores[2][4];
    wait(&s_.full[ring_.stage], ring_.parity);
    multiply_keys(s_.stages[ring_.stage], scores);
    release_stage(s_, ring_);
    weigh(first_key, scores);
    wait(&s_.full[ring_.stage], ring_.parity);
    sync_and_clear_unbounded(s_.stages[ring_.stage], first_key);
    add_values(s_.stages[ring_.stage]);
    release_stage(s_, ring_);
  }

  __device__ void multiply_keys(const uint16_t* keys, float (&scores)[2][4]) const {
    const TileMatrix<kPage> k(keys);
#pragma unroll
    for (int c = 0; c < 8; ++c) scores[c / 4][c % 4] = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t b[4];
      k.load_right_as_it_lies(b, 16 * step, kWarpKeys * warp_);
      const uint4 q = s_.queries[step][threadIdx.x % kWarpSize];
      const uint32_t small_q[4] = {q.x, q.y, q.z, q.w};
      multiply_bf16(scores[0], small_q, b[0], b[1]);
      multiply_bf16(scores[1], small_q, b[2], b[3]);
      multiply_bf16(scores[0], large_q_[step], b[0], b[1]);
      multiply_bf16(scores[1], large_q_[step], b[2], b[3]);
    }
  }

  // The weights of a page's keys, to shared memory, once the sums before are scaled to the new
  // bound.
  __device__ void weigh(int first_key, float (&scores)[2][4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float largest = -INFINITY;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        float& score = scores[c / 2][2 * i + c % 2];
        const int key = first_key + kWarpKeys * warp_ + c / 2 * 8 + lane_column_ + c % 2;
        if (key > positions_[i]) score = -INFINITY;
        largest = max_of(largest, score);
      }
      largest = sm80::quad_max(largest);
      if (lane_column_ == 0) s_.largest[warp_][query(i)] = largest;
    }
    sync_multiplying<kTileThreads>();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float largest = s_.largest[0][query(i)];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) largest = max_of(largest, s_.largest[w][query(i)]);
      const float bound = max_of(bound_[i], ceilf(largest)), origin = sm80::origin_of(bound);
      const float scale = sm80::power_of_two(__fsub_rn(bound_[i], bound));
      bound_[i] = bound;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        float x = sm80::weight_of(scores[n][2 * i], origin);
        float y = sm80::weight_of(scores[n][2 * i + 1], origin);
        sum = __fadd_rn(sum, __fadd_rn(x, y));
        const int at = value_at<kPage>(query(i), kWarpKeys / 8 * warp_ + n) + lane_column_;
        *reinterpret_cast<uint32_t*>(s_.weights[0] + at) = sm80::cut_pair(x, y);
        *reinterpret_cast<uint32_t*>(s_.weights[1] + at) = sm80::cut_pair(x, y);
      }
      weights_[i] = __fmaf_rn(weights_[i], scale, sum);
#pragma unroll
      for (int n = 0; n < kChannelTiles; ++n) {
        sums_[n][2 * i] = __fmul_rn(sums_[n][2 * i], scale);
        sums_[n][2 * i + 1] = __fmul_rn(sums_[n][2 * i + 1], scale);
      }
    }
  }

  // Where the 8 values of a token from channel 8 `piece` on are.
  __device__ static int stored_at(int token, int piece) {
    return piece / 8 * 64 * kPage + value_at<64>(token, piece % 8);
  }

  // Waits for the weights, and sees that no value that some query of the tile does not see is
  // infinite or NaN, as it would be multiplied by 0. Sums of queries that see it become NaN. Tokens
  // that no query sees may be anything.
  __device__ void sync_and_clear_unbounded(uint16_t* values, int first_key) {
    constexpr int kPieces = kD / 8;
    if (first_key + kPage - 1 <= session_.position) return sync_multiplying<kTileThreads>();
    bool found = false;
    for (int x = threadIdx.x; x < kPage * kPieces; x += kTileThreads) {
      const int token = x / kPieces;
      if (first_key + token <= session_.position) continue;
      const uint16_t* piece = values + stored_at(token, x % kPieces);
      found |= sm80::has_unbounded(*reinterpret_cast<const uint4*>(piece));
    }
    if (!sync_multiplying_or<kTileThreads>(found)) return;
    for (int token = 0; token < kPage; ++token) {
      if (first_key + token > session_.position) spoil_sums(values, token, first_key + token);
    }
    sync_multiplying<kTileThreads>();
    for (int x = threadIdx.x; x < kPage * kPieces; x += kTileThreads) {
      const int token = x / kPieces;
      if (first_key + token <= session_.position) continue;
      uint4& piece = *reinterpret_cast<uint4*>(values + stored_at(token, x % kPieces));
      piece = sm80::bounded(piece);
    }
    show_to_copies();  // before the copy engine writes there again
    sync_multiplying<kTileThreads>();
  }
  __device__ void spoil_sums(const uint16_t* values, int token, int key) {
#pragma unroll
    for (int n = 0; n < kChannelTiles; ++n) {
      const int at = stored_at(token, warp_ * kChannelTiles + n) + lane_column_;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if (!sm80::is_unbounded(values[at + c])) continue;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (key <= positions_[i]) sums_[n][2 * i + c] = NAN;
        }
      }
    }
  }

  __device__ void add_values(const uint16_t* values) {
    const TileMatrix<kPage> large(s_.weights[0]), small(s_.weights[1]);
    const int first = kChannels * warp_;
    const TileMatrix<64> v(values + first / 64 * 64 * kPage);
#pragma unroll
    for (int j = 0; j < kPage; j += 16) {
      uint32_t large_w[4], small_w[4];
      large.load_left(large_w, 0, j);
      small.load_left(small_w, 0, j);
#pragma unroll
      for (int n = 0; n < kChannelTiles; n += 2) {
        uint32_t b[4];
        v.load_right_as_it_lies(b, j, first % 64 + 8 * n);
        multiply_bf16(sums_[n], large_w, b[0], b[1]);
        multiply_bf16(sums_[n + 1], large_w, b[2], b[3]);
        multiply_bf16(sums_[n], small_w, b[0], b[1]);
        multiply_bf16(sums_[n + 1], small_w, b[2], b[3]);
      }
    }
  }

  // The sums of weights of the part, of which each lane has those of its keys so far.
  __device__ void end_part() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum = sm80::quad_sum(weights_[i]);
      if (lane_column_ == 0) s_.weights_of_warps[warp_][query(i)] = sum;
    }
    sync_multiplying<kTileThreads>();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      weights_[i] = s_.weights_of_warps[0][query(i)];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) {
        weights_[i] = __fadd_rn(weights_[i], s_.weights_of_warps[w][query(i)]);
      }
    }
  }

  // Calls visit(i, query) for the queries of this lane that there are and that see the part.
  template <typename Visit>
  __device__ void for_each_query(int part, Visit visit) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (query(i) < count_ && part * kAttentionPart <= positions_[i]) visit(i, query(i));
    }
  }
  // The first channel of a lane's two of a tile.
  __device__ int channel(int n) const { return kChannels * warp_ + 8 * n + lane_column_; }

  __device__ void write_part(const UnitWalk& walk) {
    for_each_query(walk.part(), [&](int i, int query) {
      float* to = memory_.at(a_, walk.number(), query);
      if (warp_ == 0 && lane_column_ == 0) to[0] = bound_[i], to[1] = weights_[i];
#pragma unroll
      for (int n = 0; n < kChannelTiles; ++n) {
        *reinterpret_cast<float2*>(to + 2 + channel(n)) =
            make_float2(sums_[n][2 * i], sums_[n][2 * i + 1]);
      }
    });
  }

  // Joins the part to those before it, in memory where each thread has its own sums.
  __device__ void join_part(const UnitWalk& walk) {
    const int part = walk.part();
    for_each_query(part, [&](int i, int query) {
      const PartScales scales = joined_[i].join(part == 0, bound_[i], weights_[i]);
      const bool is_last = positions_[i] / kAttentionPart == part;
      float* const all = memory_.at(a_, blockIdx.x, query) + 2;
      float* const o = a_.o + (row(query) * a_.H + head(query)) * kD;
#pragma unroll
      for (int n = 0; n < kChannelTiles; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int d = channel(n) + c;
          const float sum = sums_[n][2 * i + c];
          const float joined = part == 0 ? sum : scales.join(all[d], sum);
          if (!is_last) {
            all[d] = joined;
            continue;
          }
          const float* gate = sm80::gate_of(a_, row(query), head(query), d);
          o[d] = sm80::finished(joined, joined_[i].reciprocal(), gate);
        }
      }
    });
  }

  const PagedAttentionArgs& a_;
  const UnitMemory& memory_;
  Shared<kD>& s_;
  const int warp_, lane_row_, lane_column_, shared_by_;
  PageRing<Shared<kD>::kStages> ring_;
  Session session_;
  int key_head_, count_;
  int positions_[2];
  uint32_t large_q_[kSteps][4];
  float bound_[2], weights_[2];  // of the part so far
  float sums_[kChannelTiles][4];
  PartSums joined_[2];
};

}  // namespace recurve::cuda::sm90::attention_steps
