#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/page_check.h"
#include "kernels/reference/math.h"
#include "kernels/reference/table.h"

namespace recurve::reference {
namespace {

// Where a head of the page of the token at position x is, in elements from the beginning of data.
int64_t head_at(const PagedData& paged, int32_t slot, int64_t x, int head, int D) {
  const int64_t page = paged.table[int64_t{slot} * paged.most + x / kPageTokens];
  return page * paged.page_bytes / static_cast<int64_t>(size_of(paged.dtype)) +
         head * kPageTokens * D;
}

// The same of a channel of its key, and of its value.
int64_t key_at(const PagedData& keys, int32_t slot, int64_t x, int head, int D, int d) {
  return head_at(keys, slot, x, head, D) + d * kPageTokens + x % kPageTokens;
}
int64_t value_at(const PagedData& values, int32_t slot, int64_t x, int head, int D, int d) {
  return head_at(values, slot, x, head, D) + x % kPageTokens * D + d;
}

float read(const PagedData& paged, int64_t at) {
  if (paged.dtype == DType::kF32) return static_cast<const float*>(paged.data)[at];
  return bf16_to_f32(static_cast<const uint16_t*>(paged.data)[at]);
}

void write(const PagedData& paged, int64_t at, float value) {
  if (paged.dtype == DType::kF32) {
    static_cast<float*>(paged.data)[at] = value;
  } else {
    static_cast<uint16_t*>(paged.data)[at] = f32_to_bf16(value);
  }
}

// Of the keys of a part, or of all parts so far.
struct Sums {
  float largest = 0, weights = 0;
  std::vector<float> values;
};

Sums part_of(const PagedAttentionArgs& a, int32_t slot, int64_t row, int head, int64_t from,
             int64_t to) {
  const int shared = head / (a.H / a.HK);
  const float* q = a.q_at(row, head);
  std::vector<float> scores;
  for (int64_t x = from; x < to; ++x) {
    float product = 0;
    for (int d = 0; d < a.D; ++d) {
      product += q[d] * read(a.keys, key_at(a.keys, slot, x, shared, a.D, d));
    }
    scores.push_back(a.scale * product);
  }
  Sums sums{.largest = scores[0], .weights = 0, .values = std::vector<float>(a.D)};
  for (const float score : scores) sums.largest = score > sums.largest ? score : sums.largest;
  for (int64_t x = from; x < to; ++x) {
    const float weight = std::exp(scores[static_cast<size_t>(x - from)] - sums.largest);
    sums.weights += weight;
    for (int d = 0; d < a.D; ++d) {
      sums.values[d] += weight * read(a.values, value_at(a.values, slot, x, shared, a.D, d));
    }
  }
  return sums;
}

void join(Sums& all, const Sums& part) {
  const float largest = part.largest > all.largest ? part.largest : all.largest;
  const float old_scale = std::exp(all.largest - largest);
  const float new_scale = std::exp(part.largest - largest);
  all.largest = largest;
  all.weights = all.weights * old_scale + part.weights * new_scale;
  for (size_t d = 0; d < all.values.size(); ++d) {
    all.values[d] = all.values[d] * old_scale + part.values[d] * new_scale;
  }
}

void attend(const PagedAttentionArgs& a, int32_t slot, int64_t row, int head) {
  float* o = a.o + (row * a.H + head) * a.D;
  if (slot == 0) {
    std::fill_n(o, a.D, 0.0f);
    return;
  }
  const int64_t keys = int64_t{a.position[row]} + 1;
  Sums all = part_of(a, slot, row, head, 0, std::min<int64_t>(keys, kAttentionPart));
  for (int64_t from = kAttentionPart; from < keys; from += kAttentionPart) {
    join(all, part_of(a, slot, row, head, from, std::min<int64_t>(keys, from + kAttentionPart)));
  }
  for (int d = 0; d < a.D; ++d) {
    o[d] = all.values[d] / all.weights;
    if (a.gate != nullptr) {
      o[d] *= sigmoid(a.gate[row * a.gate_stride + int64_t{head} * a.gate_head_stride + d]);
    }
  }
}

}  // namespace

void run(const AppendArgs& a, Stream&) {
  check_pages(a);
  for (int seq = 0; seq < a.seqs.num_seqs; ++seq) {
    const int32_t slot = a.seqs.slot[seq];
    for (int64_t row = a.seqs.begin[seq]; slot != 0 && row < a.seqs.begin[seq + 1]; ++row) {
      for (int head = 0; head < a.HK; ++head) {
        for (int d = 0; d < a.D; ++d) {
          const int64_t x = a.position[row], channel = int64_t{head} * a.D + d;
          write(a.keys, key_at(a.keys, slot, x, head, a.D, d), a.k[row * a.k_stride + channel]);
          write(a.values, value_at(a.values, slot, x, head, a.D, d),
                a.v[row * a.v_stride + channel]);
        }
      }
    }
  }
}

void run(const PagedAttentionArgs& a, Stream&) {
  check_pages(a);
  for (int seq = 0; seq < a.seqs.num_seqs; ++seq) {
    for (int64_t row = a.seqs.begin[seq]; row < a.seqs.begin[seq + 1]; ++row) {
      for (int head = 0; head < a.H; ++head) attend(a, a.seqs.slot[seq], row, head);
    }
  }
}

}  // namespace recurve::reference
