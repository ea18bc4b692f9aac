#include <algorithm>
#include <cmath>

#include "kernels/cpu/recurrence/matrix_state.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

// The first stage of matrix_state.h: gates, scores, denominators, and the new n and m.

#ifndef RECURVE_CPU_MLSTM_ONCE
#define RECURVE_CPU_MLSTM_ONCE
namespace recurve::cpu {

// One chunk of one head of one sequence.
struct MlstmChunk {
  int L;           // rows; 1: the step form
  const float* q;  // (L, DK), args.stride floats apart
  const float* k;  // (L, DK), the same stride
  const float* v;  // (L, DV), the same stride
  const float* i;  // (L), the same stride
  const float* f;  // (L), the same stride
  float* n;        // (DK)
  float* m;        // scalar
  float* h;        // (L, DV), H DV floats apart
};

// What the first stage leaves for the second.
struct MlstmShared {
  float* F;      // (DK) factor of the old C, the same for all
  float* q;      // (L, DK) scaled query with the factor it meets the old C with
  float* S;      // (L, S_stride) gated scores, valid for j <= t; chunk form
  float* Ik;     // (L, DK) k with the factor it enters the state with
  float* den;    // (L) denominator of h
  float* gates;  // (3, L) i, sum of lf, running maximum of i - that sum
  int S_stride;
};

inline int scores_stride(int L) { return (L + 3) / 4 * 4; }

// Floats of scratch for chunks of up to L rows.
inline size_t shared_floats(const MlstmArgs& a, int L) {
  return static_cast<size_t>(L) * (2 * a.DK + scores_stride(L) + 4) + a.DK;
}

inline MlstmShared shared_at(const MlstmArgs& a, int L, float* scratch) {
  MlstmShared s;
  s.S_stride = scores_stride(L);
  s.F = scratch;
  s.q = s.F + a.DK;
  s.Ik = s.q + int64_t{L} * a.DK;
  s.S = s.Ik + int64_t{L} * a.DK;
  s.den = s.S + int64_t{L} * s.S_stride;
  s.gates = s.den + L;
  return s;
}

inline float gate(float x, float cap) { return cap > 0 ? cap * std::tanh(x / cap) : x; }

// Log of the forget gate.
inline float log_forget(float f, float cap) {
  const float x = gate(f, cap);
  return std::fmin(x, 0.0f) - std::log1p(std::exp(-std::fabs(x)));
}

}  // namespace recurve::cpu
#endif  // RECURVE_CPU_MLSTM_ONCE

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/recurrence/mlstm.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/linear/dot_tile-inl.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

HWY_INLINE float dot(int count, const float* a, const float* b) {
  return sum_over(count, [&](auto d, int64_t j) HWY_ATTR {
    return hn::Mul(hn::LoadU(d, a + j), hn::LoadU(d, b + j));
  });
}

// ---- step form

void step_shared(const MlstmArgs& a, const MlstmChunk& c, const MlstmShared& s) {
  const float i = gate(*c.i, a.gate_soft_cap);
  const float lf = log_forget(*c.f, a.gate_soft_cap);
  const float m = std::max(lf + *c.m, i);
  const float I = std::exp(i - m);
  const float F = std::exp(lf + *c.m - m);
  std::fill_n(s.F, a.DK, F);
  *c.m = m;

  const float scale = 1.0f / std::sqrt(static_cast<float>(a.DK));
  for_lanes(a.DK, [&](auto d, int64_t j) HWY_ATTR {
    const auto Ik = hn::Mul(hn::Set(d, I), hn::LoadU(d, c.k + j));
    hn::StoreU(Ik, d, s.Ik + j);
    hn::StoreU(hn::Mul(hn::Set(d, scale), hn::LoadU(d, c.q + j)), d, s.q + j);
    hn::StoreU(hn::MulAdd(hn::Set(d, F), hn::LoadU(d, c.n + j), Ik), d, c.n + j);
  });
  const float qn = dot(a.DK, s.q, c.n);
  s.den[0] = std::max(std::fabs(qn), std::exp(-m)) + a.eps;
}

// ---- chunk form

// Gates row t of the scores and fills in what the second stage needs for it.
void gate_scores(const MlstmArgs& a, const MlstmChunk& c, const MlstmShared& s, int t) {
  const float* i = s.gates;
  const float* b = s.gates + c.L;
  const float* best = s.gates + 2 * c.L;
  float* S = s.S + int64_t{t} * s.S_stride;
  const float scale = 1.0f / std::sqrt(static_cast<float>(a.DK));
  const float m = std::max(b[t] + *c.m, b[t] + best[t]);
  const float e = std::exp(b[t] + *c.m - m) * scale;

  const float from_scores = sum_over(t + 1, [&](auto d, int64_t j) HWY_ATTR {
    const auto D = hn::Add(hn::Sub(hn::Set(d, b[t]), hn::LoadU(d, b + j)), hn::LoadU(d, i + j));
    const auto weight = hn::Mul(exp(d, hn::Sub(D, hn::Set(d, m))), hn::Set(d, scale));
    const auto gated = hn::Mul(hn::LoadU(d, S + j), weight);
    hn::StoreU(gated, d, S + j);
    return gated;
  });
  const float* q = c.q + int64_t{t} * a.stride;
  float* faded = s.q + int64_t{t} * a.DK;
  for_lanes(a.DK, [&](auto d, int64_t j) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::Set(d, e), hn::LoadU(d, q + j)), d, faded + j);
  });
  const float qn = dot(a.DK, faded, c.n) + from_scores;
  s.den[t] = std::max(std::fabs(qn), std::exp(-m)) + a.eps;
}

// The new n and m, and what the keys enter the state with.
void update_shared(const MlstmArgs& a, const MlstmChunk& c, const MlstmShared& s) {
  const float* i = s.gates;
  const float* b = s.gates + c.L;
  const float g = b[c.L - 1];
  const float m = std::max(g + *c.m, g + s.gates[3 * c.L - 1]);
  const float F = std::exp(g + *c.m - m);
  std::fill_n(s.F, a.DK, F);
  *c.m = m;
  for_lanes(a.DK, [&](auto d, int64_t j) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::Set(d, F), hn::LoadU(d, c.n + j)), d, c.n + j);
  });
  for (int t = 0; t < c.L; ++t) {
    const float I = std::exp(g - b[t] + i[t] - m);
    const float* k = c.k + int64_t{t} * a.stride;
    float* Ik = s.Ik + int64_t{t} * a.DK;
    for_lanes(a.DK, [&](auto d, int64_t j) HWY_ATTR {
      const auto key = hn::Mul(hn::Set(d, I), hn::LoadU(d, k + j));
      hn::StoreU(key, d, Ik + j);
      hn::StoreU(hn::Add(hn::LoadU(d, c.n + j), key), d, c.n + j);
    });
  }
}

void chunk_shared(const MlstmArgs& a, const MlstmChunk& c, const MlstmShared& s) {
  float* i = s.gates;
  float* b = s.gates + c.L;
  float* best = s.gates + 2 * c.L;
  float sum = 0;
  for (int t = 0; t < c.L; ++t) {
    sum += log_forget(c.f[int64_t{t} * a.stride], a.gate_soft_cap);
    b[t] = sum;
    i[t] = gate(c.i[int64_t{t} * a.stride], a.gate_soft_cap);
    best[t] = t == 0 ? i[0] - b[0] : std::max(best[t - 1], i[t] - b[t]);
  }
  dot_triangle(a.DK, c.L, c.q, a.stride, c.k, a.stride, s.S, s.S_stride);
  for (int t = 0; t < c.L; ++t) gate_scores(a, c, s, t);
  update_shared(a, c, s);
}

MatrixRows mlstm_rows(const MlstmArgs& a, const MlstmChunk& c, float* memory) {
  const MlstmShared s = shared_at(a, c.L, memory);
  if (c.L == 1) {
    step_shared(a, c, s);
  } else {
    chunk_shared(a, c, s);
  }
  return {.L = c.L,
          .DK = a.DK,
          .DV = a.DV,
          .P_stride = s.S_stride,
          .q = s.q,
          .k = s.Ik,
          .F = s.F,
          .P = s.S,
          .den = s.den,
          .v_stride = a.stride,
          .o_stride = int64_t{a.H} * a.DV,
          .v = c.v,
          .S = {},
          .o = c.h};
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {
namespace {

HWY_EXPORT(mlstm_rows);

int rows_of(const MlstmArgs& a, int64_t seq) { return a.seqs.begin[seq + 1] - a.seqs.begin[seq]; }

// The chunk that begins with row `first` of the sequence.
MlstmChunk chunk_at(const MlstmArgs& a, int64_t seq, int64_t head, int first) {
  const int64_t row = a.seqs.begin[seq] + first;
  const int64_t state = int64_t{a.seqs.slot[seq]} * a.H + head;
  MlstmChunk c;
  c.L = std::min(a.chunk, rows_of(a, seq) - first);
  c.q = a.q + row * a.stride + head * a.DK;
  c.k = a.k + row * a.stride + head * a.DK;
  c.v = a.v + row * a.stride + head * a.DV;
  c.i = a.i + row * a.stride + head;
  c.f = a.f + row * a.stride + head;
  c.n = a.n + state * a.DK;
  c.m = a.m + state;
  c.h = a.h + (row * a.H + head) * a.DV;
  return c;
}

}  // namespace

ScratchBytes scratch_of(const MlstmArgs& args) {
  const int rows = std::min(args.chunk, args.seqs.max_len);
  return scratch_of_heads(args.DK, args.DV, rows, args.C, shared_floats(args, rows));
}

void run(const MlstmArgs& args, Stream& stream) {
  const size_t floats = shared_floats(args, std::min(args.chunk, args.seqs.max_len));
  for_heads(pool_of(stream), args.seqs, args.H, args.DK, args.DV, args.chunk, args.C, floats,
            [&](int64_t seq, int64_t head, int first, float* memory) {
              const MlstmChunk c = chunk_at(args, seq, head, first);
              return HWY_DYNAMIC_DISPATCH(mlstm_rows)(args, c, memory);
            });
  if (args.head_norm != nullptr) run(head_norm_gate_of(args), stream);
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
