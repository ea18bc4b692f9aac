#include <algorithm>
#include <cmath>

#include "kernels/cpu/recurrence/matrix_state.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

// The first stage of matrix_state.h. A chunk is taken in blocks of kBlock rows, from its first row
// on. All decays inside a block are products of factors of at most 1, made backwards from each row:
// none is a quotient, so channels may fade as fast as they like.

#ifndef RECURVE_CPU_GLA_ONCE
#define RECURVE_CPU_GLA_ONCE
namespace recurve::cpu {

inline constexpr int kGlaBlock = 16;

// A block of one head of one sequence.
struct GlaBlock {
  int L;           // rows; 1: the step form
  int64_t g_step;  // floats from a row of g to the next; 0: one decay for all
  const float* q;  // (L, DK), args.q_stride floats apart
  const float* k;  // (L, DK), args.k_stride floats apart
  const float* v;  // (L, DV), args.v_stride floats apart
  const float* g;  // (L, DK) with kChannel, else (L), g_step floats apart; or null
  const float* i;  // (L), args.g_stride floats apart; or null
  float* z;        // (DK) or null
  float* o;        // (L, DV), H DV floats apart
};

// What the first stage leaves for the second, and its scratch.
struct GlaScratch {
  float* q;       // (L, DK) scaled query with the decays from the state on
  float* k;       // (L, DK) key with its weight and the decays up to the new state
  float* decay;   // (L, DK) with kChannel, else (L)
  float* F;       // (DK) product of all decays
  float* P;       // (L, kGlaBlock)
  float* weight;  // (L) exp(i)
  float* den;     // (L)
};

inline size_t gla_floats(const GlaArgs& a) {
  return static_cast<size_t>(a.DK) * (3 * kGlaBlock + 1) + kGlaBlock * (kGlaBlock + 2);
}

inline GlaScratch gla_scratch_at(const GlaArgs& a, float* memory) {
  const int64_t rows = int64_t{kGlaBlock} * a.DK;
  GlaScratch s;
  s.q = memory;
  s.k = s.q + rows;
  s.decay = s.k + rows;
  s.F = s.decay + rows;
  s.P = s.F + a.DK;
  s.weight = s.P + kGlaBlock * kGlaBlock;
  s.den = s.weight + kGlaBlock;
  return s;
}

}  // namespace recurve::cpu
#endif  // RECURVE_CPU_GLA_ONCE

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/recurrence/gla.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/linear/dot_tile-inl.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

HWY_INLINE void scale_to(int count, float factor, const float* x, float* y) {
  for_lanes(count, [&](auto d, int64_t j) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::Set(d, factor), hn::LoadU(d, x + j)), d, y + j);
  });
}

// ---- one decay a row

// The decay of each row, which is 1 where there is none.
void row_decays(const GlaBlock& b, const GlaScratch& s) {
  for (int t = 0; t < b.L; ++t) s.decay[t] = b.g == nullptr ? 1 : std::exp(b.g[t * b.g_step]);
}

void scores_by_row(const GlaArgs& a, const GlaBlock& b, const GlaScratch& s) {
  dot_triangle(a.DK, b.L, b.q, a.q_stride, b.k, a.k_stride, s.P, kGlaBlock);
  for (int t = 0; t < b.L; ++t) {
    float* P = s.P + int64_t{t} * kGlaBlock;
    float faded = a.scale;
    for (int j = t; j >= 0; --j) {
      P[j] *= faded * s.weight[j];
      faded *= s.decay[j];
    }
    scale_to(a.DK, faded, b.q + int64_t{t} * a.q_stride, s.q + int64_t{t} * a.DK);
  }
}

void keys_by_row(const GlaArgs& a, const GlaBlock& b, const GlaScratch& s) {
  float faded = 1;
  for (int j = b.L - 1; j >= 0; --j) {
    scale_to(a.DK, faded * s.weight[j], b.k + int64_t{j} * a.k_stride, s.k + int64_t{j} * a.DK);
    faded *= s.decay[j];
  }
  std::fill_n(s.F, a.DK, faded);
}

// ---- one decay a row and channel

void channel_decays(const GlaArgs& a, const GlaBlock& b, const GlaScratch& s) {
  for (int t = 0; t < b.L; ++t) {
    const float* g = b.g + t * b.g_step;
    float* decay = s.decay + int64_t{t} * a.DK;
    for_lanes(a.DK, [&](auto d, int64_t j)
                        HWY_ATTR { hn::StoreU(exp(d, hn::LoadU(d, g + j)), d, decay + j); });
  }
}

// Scores of the query q with the rows from j back to j - ROWS + 1, to P[j] and before it. On the
// way q fades by the decay of each row it passes.
template <int ROWS>
HWY_INLINE void scores_back(const GlaArgs& a, const GlaBlock& b, const GlaScratch& s, int j,
                            float* q, float* P) {
  constexpr int64_t kLanes = hn::MaxLanes(Floats());
  const Floats d;
  const float* k[ROWS];
  const float* decay[ROWS];
  hn::Vec<Floats> sum[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  HWY_UNROLL(4)
  for (int r = 0; r < ROWS; ++r) {
    k[r] = b.k + int64_t{j - r} * a.k_stride;
    decay[r] = s.decay + int64_t{j - r} * a.DK;
  }
  int64_t at = 0;
  for (; at + kLanes <= a.DK; at += kLanes) {
    auto faded = hn::LoadU(d, q + at);
    HWY_UNROLL(4)
    for (int r = 0; r < ROWS; ++r) {
      sum[r] = hn::MulAdd(faded, hn::LoadU(d, k[r] + at), sum[r]);
      faded = hn::Mul(faded, hn::LoadU(d, decay[r] + at));
    }
    hn::StoreU(faded, d, q + at);
  }
  float sums[4];
  store_lane_sums(sum[0], sum[1], sum[2], sum[3], sums);
  for (; at < a.DK; ++at) {
    for (int r = 0; r < ROWS; ++r) {
      sums[r] += q[at] * k[r][at];
      q[at] *= decay[r][at];
    }
  }
  for (int r = 0; r < ROWS; ++r) P[j - r] = sums[r] * s.weight[j - r];
}

void scores_by_channel(const GlaArgs& a, const GlaBlock& b, const GlaScratch& s) {
  for (int t = 0; t < b.L; ++t) {
    float* q = s.q + int64_t{t} * a.DK;
    float* P = s.P + int64_t{t} * kGlaBlock;
    scale_to(a.DK, a.scale, b.q + int64_t{t} * a.q_stride, q);
    int j = t;
    for (; j >= 3; j -= 4) scores_back<4>(a, b, s, j, q, P);
    for (; j >= 0; --j) scores_back<1>(a, b, s, j, q, P);
  }
}

void keys_by_channel(const GlaArgs& a, const GlaBlock& b, const GlaScratch& s) {
  for_lanes(a.DK, [&](auto d, int64_t at) HWY_ATTR {
    auto faded = hn::Set(d, 1.0f);
    for (int j = b.L - 1; j >= 0; --j) {
      const auto key = hn::Mul(hn::Set(d, s.weight[j]), hn::LoadU(d, b.k + j * a.k_stride + at));
      hn::StoreU(hn::Mul(faded, key), d, s.k + int64_t{j} * a.DK + at);
      faded = hn::Mul(faded, hn::LoadU(d, s.decay + int64_t{j} * a.DK + at));
    }
    hn::StoreU(faded, d, s.F + at);
  });
}

// ---- the normaliser

// The new z.
void update_normaliser(const GlaArgs& a, const GlaBlock& b, const GlaScratch& s) {
  for_lanes(a.DK, [&](auto d, int64_t at) HWY_ATTR {
    auto z = hn::Mul(hn::LoadU(d, s.F + at), hn::LoadU(d, b.z + at));
    for (int j = 0; j < b.L; ++j) z = hn::Add(z, hn::LoadU(d, s.k + int64_t{j} * a.DK + at));
    hn::StoreU(z, d, b.z + at);
  });
}

// The divisor of row t: q_t . z and the scores, bounded where asked for, and eps.
float denominator(const GlaArgs& a, const GlaBlock& b, const GlaScratch& s, int t) {
  const float* q = s.q + int64_t{t} * a.DK;
  float sum = sum_over(a.DK, [&](auto d, int64_t at) HWY_ATTR {
    return hn::Mul(hn::LoadU(d, q + at), hn::LoadU(d, b.z + at));
  });
  for (int j = 0; b.L > 1 && j <= t; ++j) sum += s.P[int64_t{t} * kGlaBlock + j];
  return (a.bounded ? std::max(std::fabs(sum), 1.0f) : sum) + a.eps;
}

// ----

// The step is a block of one row but for its query, which meets the new state.
void gla_step(const GlaArgs& a, const GlaBlock& b, const GlaScratch& s) {
  scale_to(a.DK, a.scale, b.q, s.q);
  if (b.z == nullptr) return;
  update_normaliser(a, b, s);
  s.den[0] = denominator(a, b, s, 0);
}

void gla_chunk(const GlaArgs& a, const GlaBlock& b, const GlaScratch& s) {
  if (a.decay == GlaDecay::kChannel) {
    scores_by_channel(a, b, s);
  } else {
    scores_by_row(a, b, s);
  }
  if (b.z == nullptr) return;
  for (int t = 0; t < b.L; ++t) s.den[t] = denominator(a, b, s, t);
  update_normaliser(a, b, s);
}

MatrixRows gla_rows(const GlaArgs& a, const GlaBlock& b, float* memory) {
  const GlaScratch s = gla_scratch_at(a, memory);
  for (int t = 0; t < b.L; ++t) {
    s.weight[t] = b.i == nullptr ? 1 : std::exp(b.i[int64_t{t} * a.g_stride]);
  }
  if (a.decay == GlaDecay::kChannel) {
    channel_decays(a, b, s);
    keys_by_channel(a, b, s);
  } else {
    row_decays(b, s);
    keys_by_row(a, b, s);
  }
  if (b.L == 1) {
    gla_step(a, b, s);
  } else {
    gla_chunk(a, b, s);
  }
  return {.L = b.L,
          .DK = a.DK,
          .DV = a.DV,
          .P_stride = kGlaBlock,
          .q = s.q,
          .k = s.k,
          .F = s.F,
          .P = s.P,
          .den = b.z == nullptr ? nullptr : s.den,
          .v_stride = a.v_stride,
          .o_stride = int64_t{a.H} * a.DV,
          .v = b.v,
          .S = {},
          .o = b.o};
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {
namespace {

HWY_EXPORT(gla_rows);

// The block that begins with row `first` of the sequence. It ends with its chunk at the latest.
GlaBlock block_at(const GlaArgs& a, int64_t seq, int64_t head, int first) {
  const int64_t row = a.seqs.begin[seq] + first;
  const int64_t state = int64_t{a.seqs.slot[seq]} * a.H + head;
  const int64_t g_step = a.decay == GlaDecay::kHead ? 0 : a.g_stride;
  const int64_t g_head = a.decay == GlaDecay::kChannel ? head * a.DK : head;
  const int rows = a.seqs.begin[seq + 1] - a.seqs.begin[seq];
  return {.L = std::min({kGlaBlock, a.chunk - first % a.chunk, rows - first}),
          .g_step = g_step,
          .q = a.q + row * a.q_stride + head * a.DK,
          .k = a.k + row * a.k_stride + head * a.DK,
          .v = a.v + row * a.v_stride + head * a.DV,
          .g = a.decay == GlaDecay::kNone ? nullptr : a.g + row * g_step + g_head,
          .i = a.i == nullptr ? nullptr : a.i + row * a.g_stride + head,
          .z = a.z == nullptr ? nullptr : a.z + state * a.DK,
          .o = a.o + (row * a.H + head) * a.DV};
}

}  // namespace

ScratchBytes scratch_of(const GlaArgs& args) {
  const int rows = std::min(args.chunk, args.seqs.max_len);
  return scratch_of_heads(args.DK, args.DV, rows, args.S, gla_floats(args));
}

void run(const GlaArgs& args, Stream& stream) {
  for_heads(pool_of(stream), args.seqs, args.H, args.DK, args.DV, args.chunk, args.S,
            gla_floats(args), [&](int64_t seq, int64_t head, int first, float* memory) {
              const GlaBlock block = block_at(args, seq, head, first);
              return HWY_DYNAMIC_DISPATCH(gla_rows)(args, block, memory);
            });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
