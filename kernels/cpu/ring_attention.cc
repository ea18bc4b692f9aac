#include <algorithm>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#ifndef RECURVE_CPU_RING_ATTENTION_ONCE
#define RECURVE_CPU_RING_ATTENTION_ONCE
namespace recurve::cpu {

// One row of the heads of queries that share a head of keys and values: each key and value is read
// once for all of them.
struct RingRow {
  int heads;
  int D;
  int keys;       // that it sees
  int from_ring;  // the first so many of them are in the ring, the others in rows of this call
  int64_t first;  // place in the ring of the first key
  int64_t W;      // places in the ring
  float scale;
  int64_t ring_stride, k_stride, v_stride;  // from place to place, from row to row
  const float* q;                           // (heads, D)
  const float* ring_k;                      // (W, D)
  const float* ring_v;                      // (W, D)
  const float* k;                           // (keys - from_ring, D)
  const float* v;                           // (keys - from_ring, D)
  float* weights;                           // (heads, keys) scratch
  float* o;                                 // (heads, D)

  const float* key(int64_t x) const {
    return x < from_ring ? ring_k + (first + x) % W * ring_stride : k + (x - from_ring) * k_stride;
  }
  const float* value(int64_t x) const {
    return x < from_ring ? ring_v + (first + x) % W * ring_stride : v + (x - from_ring) * v_stride;
  }
};

}  // namespace recurve::cpu
#endif  // RECURVE_CPU_RING_ATTENTION_ONCE

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/ring_attention.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// The weights of one head's keys, from their scores -> their sum.
float softmax(int64_t keys, float* scores) {
  float largest = scores[0];
  for (int64_t x = 1; x < keys; ++x) largest = scores[x] > largest ? scores[x] : largest;
  for_lanes(keys, [&](auto d, int64_t x) HWY_ATTR {
    hn::StoreU(exp(d, hn::Sub(hn::LoadU(d, scores + x), hn::Set(d, largest))), d, scores + x);
  });
  return sum_over(keys, [&](auto d, int64_t x) HWY_ATTR { return hn::LoadU(d, scores + x); });
}

void attend(const RingRow& r) {
  for (int64_t x = 0; x < r.keys; ++x) {
    const float* key = r.key(x);
    for (int64_t head = 0; head < r.heads; ++head) {
      const float* q = r.q + head * r.D;
      const float product = sum_over(r.D, [&](auto d, int64_t c) HWY_ATTR {
        return hn::Mul(hn::LoadU(d, q + c), hn::LoadU(d, key + c));
      });
      r.weights[head * r.keys + x] = r.scale * product;
    }
  }
  std::fill_n(r.o, int64_t{r.heads} * r.D, 0.0f);
  for (int64_t head = 0; head < r.heads; ++head) {
    float* weights = r.weights + head * r.keys;
    const float sum = softmax(r.keys, weights);
    for_lanes(r.keys, [&](auto d, int64_t x) HWY_ATTR {
      hn::StoreU(hn::Div(hn::LoadU(d, weights + x), hn::Set(d, sum)), d, weights + x);
    });
  }
  for (int64_t x = 0; x < r.keys; ++x) {
    const float* value = r.value(x);
    for (int64_t head = 0; head < r.heads; ++head) {
      float* o = r.o + head * r.D;
      const float weight = r.weights[head * r.keys + x];
      for_lanes(r.D, [&](auto d, int64_t c) HWY_ATTR {
        const auto sum =
            hn::MulAdd(hn::Set(d, weight), hn::LoadU(d, value + c), hn::LoadU(d, o + c));
        hn::StoreU(sum, d, o + c);
      });
    }
  }
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
  HWY_DYNAMIC_DISPATCH(attend)
  ({.heads = static_cast<int>(heads),
    .D = a.D,
    .keys = static_cast<int>(keys),
    .from_ring = static_cast<int>(from_ring),
    .first = first % a.W,
    .W = a.W,
    .scale = a.scale,
    .ring_stride = width,
    .k_stride = a.k_stride,
    .v_stride = a.v_stride,
    .q = a.q + row * a.q_stride + group * heads * a.D,
    .ring_k = a.ring_k + ring,
    .ring_v = a.ring_v + ring,
    .k = a.k + of_call * a.k_stride + group * a.D,
    .v = a.v + of_call * a.v_stride + group * a.D,
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
