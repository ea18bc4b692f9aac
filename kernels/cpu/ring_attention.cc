#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#ifndef RECURVE_CPU_RING_ATTENTION_ONCE
#define RECURVE_CPU_RING_ATTENTION_ONCE
namespace recurve::cpu {

// Keys and values that stand one behind the other.
struct RingPart {
  int64_t keys;
  int64_t k_stride, v_stride;
  const float* k;  // (keys, D)
  const float* v;  // (keys, D)
};

// One row of the heads of queries that share a head of keys and values: each key and value is read
// once for several of them.
struct RingRow {
  int heads;
  int D;
  int keys;          // that it sees, in all parts
  RingPart part[3];  // oldest first: the ring to its end, from its beginning, rows of this call
  float scale;
  const float* q;  // (heads, D)
  float* weights;  // (heads, keys) scratch
  float* o;        // (heads, D)
};

}  // namespace recurve::cpu
#endif  // RECURVE_CPU_RING_ATTENTION_ONCE

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/ring_attention.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/linear/dot_tile-inl.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// Products of ROWS heads from `head` on with all keys, each of the same shape whatever part of the
// ring its key is in (dot_tile-inl.h).
template <int ROWS>
void products(const RingRow& r, int head) {
  const float* q[ROWS];
  for (int i = 0; i < ROWS; ++i) q[i] = r.q + int64_t{head + i} * r.D;
  int64_t at = 0;
  for (const RingPart& part : r.part) {
    float* to[ROWS];
    for (int i = 0; i < ROWS; ++i) to[i] = r.weights + int64_t{head + i} * r.keys + at;
    dot_rows(r.D, q, part.k, part.k_stride, part.keys, to);
    at += part.keys;
  }
}

// The weights of one head's keys, from their products with the query.
void softmax(int64_t keys, float scale, float* weights) {
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t x = 0; x < keys; ++x) {
    weights[x] *= scale;
    largest = weights[x] > largest ? weights[x] : largest;
  }
  const float sum = sum_over(keys, [&](auto d, int64_t x) HWY_ATTR {
    const auto weight = exp(d, hn::Sub(hn::LoadU(d, weights + x), hn::Set(d, largest)));
    hn::StoreU(weight, d, weights + x);
    return weight;
  });
  for_lanes(keys, [&](auto d, int64_t x) HWY_ATTR {
    hn::StoreU(hn::Div(hn::LoadU(d, weights + x), hn::Set(d, sum)), d, weights + x);
  });
}

// Outputs of ROWS heads from `head` on, VECTORS vectors of channels from `channel` on: the oldest
// key's value comes first.
template <int ROWS, int VECTORS, class D>
void values(D d, const RingRow& r, int head, int64_t channel) {
  hn::Vec<D> sum[ROWS][VECTORS];
  HWY_UNROLL(8)
  for (int i = 0; i < ROWS; ++i) {
    HWY_UNROLL(4)
    for (int j = 0; j < VECTORS; ++j) sum[i][j] = hn::Zero(d);
  }
  const float* weights = r.weights + int64_t{head} * r.keys;
  for (const RingPart& part : r.part) {
    const float* value = part.v + channel;
    for (int64_t x = 0; x < part.keys; ++x, value += part.v_stride, ++weights) {
      HWY_UNROLL(4)
      for (int j = 0; j < VECTORS; ++j) {
        const auto channels = hn::LoadU(d, value + j * hn::MaxLanes(d));
        HWY_UNROLL(8)
        for (int i = 0; i < ROWS; ++i) {
          const auto weight = hn::Set(d, weights[int64_t{i} * r.keys]);
          sum[i][j] = hn::MulAdd(weight, channels, sum[i][j]);
        }
      }
    }
  }
  HWY_UNROLL(8)
  for (int i = 0; i < ROWS; ++i) {
    HWY_UNROLL(4)
    for (int j = 0; j < VECTORS; ++j) {
      hn::StoreU(sum[i][j], d, r.o + int64_t{head + i} * r.D + channel + j * hn::MaxLanes(d));
    }
  }
}

template <int ROWS>
void attend_heads(const RingRow& r, int head) {
  constexpr int64_t kLanes = hn::MaxLanes(Floats());
  products<ROWS>(r, head);
  for (int i = 0; i < ROWS; ++i) softmax(r.keys, r.scale, r.weights + int64_t{head + i} * r.keys);
  int64_t at = 0;
  for (; at + 4 * kLanes <= r.D; at += 4 * kLanes) values<ROWS, 4>(Floats(), r, head, at);
  for (; at + kLanes <= r.D; at += kLanes) values<ROWS, 1>(Floats(), r, head, at);
  for (; at < r.D; ++at) values<ROWS, 1>(OneFloat(), r, head, at);
}

void attend(const RingRow& r) {
  int head = 0;
  for (; head + kTileRows <= r.heads; head += kTileRows) attend_heads<kTileRows>(r, head);
  for (; head + 2 <= r.heads; head += 2) attend_heads<2>(r, head);
  if (head < r.heads) attend_heads<1>(r, head);
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {
namespace {

HWY_EXPORT(attend);

void attend_row(const RingAttentionArgs& a, int seq, int64_t row, int64_t group) {
  const int64_t begin = a.seqs.begin[seq], start = a.position[begin], at = a.position[row];
  const int64_t heads = a.H / a.HK, first = std::max<int64_t>(0, at - a.W + 1);
  const int64_t keys = at - first + 1, from_ring = std::clamp<int64_t>(start - first, 0, keys);
  const int64_t width = int64_t{a.HK} * a.D, ring = a.seqs.slot[seq] * a.W * width + group * a.D;
  const int64_t of_call = begin + std::max<int64_t>(0, first - start);  // the first row it sees
  const int64_t place = first % a.W, to_end = std::min(from_ring, a.W - place);
  const float *ring_k = a.ring_k + ring, *ring_v = a.ring_v + ring;
  HWY_DYNAMIC_DISPATCH(attend)
  ({.heads = static_cast<int>(heads),
    .D = a.D,
    .keys = static_cast<int>(keys),
    .part = {{to_end, width, width, ring_k + place * width, ring_v + place * width},
             {from_ring - to_end, width, width, ring_k, ring_v},
             {keys - from_ring, a.k_stride, a.v_stride, a.k + of_call * a.k_stride + group * a.D,
              a.v + of_call * a.v_stride + group * a.D}},
    .scale = a.scale,
    .q = a.q + row * a.q_stride + group * heads * a.D,
    .weights = scratch(static_cast<size_t>(heads * keys)),
    .o = a.o + (row * a.H + group * heads) * a.D});
}

// Rows of this call that stay: the last W of each sequence, each in its place.
void keep_rows(const RingAttentionArgs& a, int seq) {
  const int64_t end = a.seqs.begin[seq + 1], width = int64_t{a.HK} * a.D;
  for (int64_t row = std::max<int64_t>(a.seqs.begin[seq], end - a.W); row < end; ++row) {
    const int64_t place = (int64_t{a.seqs.slot[seq]} * a.W + a.position[row] % a.W) * width;
    std::copy_n(a.k + row * a.k_stride, width, a.ring_k + place);
    std::copy_n(a.v + row * a.v_stride, width, a.ring_v + place);
  }
}

}  // namespace

ScratchBytes scratch_of(const RingAttentionArgs& a) {
  return {.thread = static_cast<size_t>(a.H / a.HK) * static_cast<size_t>(a.W) * sizeof(float)};
}

// One thread a row and a head of keys; rings are written when all rows have been read.
void run(const RingAttentionArgs& args, Stream& stream) {
  std::vector<int> seq_of(static_cast<size_t>(args.seqs.rows));
  for (int seq = 0; seq < args.seqs.num_seqs; ++seq) {
    std::fill(seq_of.begin() + args.seqs.begin[seq], seq_of.begin() + args.seqs.begin[seq + 1],
              seq);
  }
  const int64_t seen = std::min<int64_t>(args.W, 256);  // a guess: positions are not read for it
  const int64_t cost = 2 * seen * args.H / args.HK * args.D;
  for_blocks(pool_of(stream), int64_t{args.seqs.rows} * args.HK, cost,
             [&](int64_t begin, int64_t end) {
               for (int64_t item = begin; item < end; ++item) {
                 const int64_t row = item / args.HK;
                 attend_row(args, seq_of[static_cast<size_t>(row)], row, item % args.HK);
               }
             });
  for (int seq = 0; seq < args.seqs.num_seqs; ++seq) keep_rows(args, seq);
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
