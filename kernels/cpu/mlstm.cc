#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

// A chunk of one head of one sequence is computed in two stages. The first does all that the
// columns of C share: gates, scores, denominators, and the new n and m. The second makes columns of
// h and of the new C, each from itself alone, so they can be split over threads in any way.

#ifndef RECURVE_CPU_MLSTM_ONCE
#define RECURVE_CPU_MLSTM_ONCE
namespace recurve::cpu {

// One chunk of one head of one sequence.
struct MlstmChunk {
  int L;           // rows; 1: the step form
  const float* q;  // (L, DK), args.stride floats apart
  const float* k;  // (L, DK), likewise
  const float* v;  // (L, DV), likewise
  const float* i;  // (L), likewise
  const float* f;  // (L), likewise
  float* C;        // (DK, DV)
  float* n;        // (DK)
  float* m;        // scalar
  float* h;        // (L, DV), H DV floats apart
};

// What the first stage leaves for the second.
struct MlstmShared {
  float F;       // factor of the old C
  float* qs;     // (DK) scaled query; step form
  float* e;      // (L) factor of the old C's part of h, the scale of q included; chunk form
  float* S;      // (L, S_stride) gated scores, valid for j <= t; chunk form
  float* Ik;     // (L, DK) k with the factor it enters the state with
  float* den;    // (L) denominator of h
  float* gates;  // (3, L) i, sum of lf, running maximum of i - that sum
  int S_stride;
};

inline int scores_stride(int L) { return (L + 3) / 4 * 4; }

// Floats of scratch for chunks of up to L rows.
inline size_t shared_room(const MlstmArgs& a, int L) {
  return static_cast<size_t>(L) * (a.DK + scores_stride(L) + 5) + a.DK;
}

inline MlstmShared shared_at(const MlstmArgs& a, int L, float* scratch) {
  MlstmShared s;
  s.F = 0;
  s.S_stride = scores_stride(L);
  s.qs = scratch;
  s.Ik = s.qs + a.DK;
  s.S = s.Ik + int64_t{L} * a.DK;
  s.e = s.S + int64_t{L} * s.S_stride;
  s.den = s.e + L;
  s.gates = s.den + L;
  return s;
}

inline float gate(float x, float cap) { return cap > 0 ? cap * std::tanh(x / cap) : x; }

inline float log_sigmoid(float x) {
  return std::fmin(x, 0.0f) - std::log1p(std::exp(-std::fabs(x)));
}

}  // namespace recurve::cpu
#endif  // RECURVE_CPU_MLSTM_ONCE

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/mlstm.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/dot_tile-inl.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

HWY_INLINE float dot(int count, const float* a, const float* b) {
  return sum_over(count, [&](auto d, int64_t j) HWY_ATTR {
    return hn::Mul(hn::LoadU(d, a + j), hn::LoadU(d, b + j));
  });
}

// ---- step form

void step_shared(const MlstmArgs& a, const MlstmChunk& c, MlstmShared& s) {
  const float i = gate(*c.i, a.gate_soft_cap);
  const float lf = log_sigmoid(gate(*c.f, a.gate_soft_cap));
  const float m = std::max(lf + *c.m, i);
  const float I = std::exp(i - m);
  s.F = std::exp(lf + *c.m - m);
  *c.m = m;

  const float scale = 1.0f / std::sqrt(static_cast<float>(a.DK));
  for_lanes(a.DK, [&](auto d, int64_t j) HWY_ATTR {
    const auto Ik = hn::Mul(hn::Set(d, I), hn::LoadU(d, c.k + j));
    hn::StoreU(Ik, d, s.Ik + j);
    hn::StoreU(hn::Mul(hn::Set(d, scale), hn::LoadU(d, c.q + j)), d, s.qs + j);
    hn::StoreU(hn::MulAdd(hn::Set(d, s.F), hn::LoadU(d, c.n + j), Ik), d, c.n + j);
  });
  const float qn = dot(a.DK, s.qs, c.n);
  s.den[0] = std::max(std::fabs(qn), std::exp(-m)) + a.eps;
}

// Four rows of C at a time, from left to right: the state is most of what a step reads and writes,
// and streams are what memory is good at.
template <int ROWS>
HWY_INLINE void step_rows(int64_t count, const MlstmShared& s, int row, float* C, int DV,
                          const float* v, float* h) {
  for_lanes(count, [&](auto d, int64_t j) HWY_ATTR {
    const auto F = hn::Set(d, s.F), value = hn::LoadU(d, v + j);
    auto sum = hn::LoadU(d, h + j);
    HWY_UNROLL(4)
    for (int r = 0; r < ROWS; ++r) {
      float* at = C + int64_t{row + r} * DV + j;
      const auto added = hn::Mul(hn::Set(d, s.Ik[row + r]), value);
      const auto updated = hn::MulAdd(F, hn::LoadU(d, at), added);
      hn::StoreU(updated, d, at);
      sum = hn::MulAdd(hn::Set(d, s.qs[row + r]), updated, sum);
    }
    hn::StoreU(sum, d, h + j);
  });
}

void step_columns(const MlstmArgs& a, const MlstmChunk& c, const MlstmShared& s, int begin,
                  int count) {
  float* h = c.h + begin;
  std::fill(h, h + count, 0.0f);
  int row = 0;
  for (; row + 4 <= a.DK; row += 4) {
    step_rows<4>(count, s, row, c.C + begin, a.DV, c.v + begin, h);
  }
  for (; row < a.DK; ++row) step_rows<1>(count, s, row, c.C + begin, a.DV, c.v + begin, h);
  for_lanes(count, [&](auto d, int64_t j) HWY_ATTR {
    hn::StoreU(hn::Div(hn::LoadU(d, h + j), hn::Set(d, s.den[0])), d, h + j);
  });
}

// ---- chunk form

// Scores q_t . k_j of ROWS rows from t on, for all j up to the last of them; not gated yet.
template <int ROWS>
void score_tile(const MlstmArgs& a, const MlstmChunk& c, const MlstmShared& s, int t) {
  const float* q[ROWS];
  for (int r = 0; r < ROWS; ++r) q[r] = c.q + int64_t{t + r} * a.stride;
  for (int j = 0; j < t + ROWS; j += 4) {
    const float* k[4];
    for (int n = 0; n < 4; ++n) k[n] = c.k + int64_t{std::min(j + n, c.L - 1)} * a.stride;
    float scores[ROWS][4];
    dot_tile(a.DK, q, k, 0, scores);
    for (int r = 0; r < ROWS; ++r) std::copy_n(scores[r], 4, s.S + int64_t{t + r} * s.S_stride + j);
  }
}

// Gates row t of the scores and fills in what the second stage needs for it.
void gate_scores(const MlstmArgs& a, const MlstmChunk& c, const MlstmShared& s, int t) {
  const float* i = s.gates;
  const float* b = s.gates + c.L;
  const float* best = s.gates + 2 * c.L;
  float* S = s.S + int64_t{t} * s.S_stride;
  const float scale = 1.0f / std::sqrt(static_cast<float>(a.DK));
  const float m = std::max(b[t] + *c.m, b[t] + best[t]);
  s.e[t] = std::exp(b[t] + *c.m - m) * scale;

  const float from_scores = sum_over(t + 1, [&](auto d, int64_t j) HWY_ATTR {
    const auto D = hn::Add(hn::Sub(hn::Set(d, b[t]), hn::LoadU(d, b + j)), hn::LoadU(d, i + j));
    const auto weight = hn::Mul(exp(d, hn::Sub(D, hn::Set(d, m))), hn::Set(d, scale));
    const auto gated = hn::Mul(hn::LoadU(d, S + j), weight);
    hn::StoreU(gated, d, S + j);
    return gated;
  });
  const float qn = s.e[t] * dot(a.DK, c.q + int64_t{t} * a.stride, c.n) + from_scores;
  s.den[t] = std::max(std::fabs(qn), std::exp(-m)) + a.eps;
}

// The new n and m, and what the keys enter the state with.
void update_shared(const MlstmArgs& a, const MlstmChunk& c, MlstmShared& s) {
  const float* i = s.gates;
  const float* b = s.gates + c.L;
  const float g = b[c.L - 1];
  const float m = std::max(g + *c.m, g + s.gates[3 * c.L - 1]);
  s.F = std::exp(g + *c.m - m);
  *c.m = m;
  for_lanes(a.DK, [&](auto d, int64_t j) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::Set(d, s.F), hn::LoadU(d, c.n + j)), d, c.n + j);
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

void chunk_shared(const MlstmArgs& a, const MlstmChunk& c, MlstmShared& s) {
  float* i = s.gates;
  float* b = s.gates + c.L;
  float* best = s.gates + 2 * c.L;
  float sum = 0;
  for (int t = 0; t < c.L; ++t) {
    sum += log_sigmoid(gate(c.f[int64_t{t} * a.stride], a.gate_soft_cap));
    b[t] = sum;
    i[t] = gate(c.i[int64_t{t} * a.stride], a.gate_soft_cap);
    best[t] = t == 0 ? i[0] - b[0] : std::max(best[t - 1], i[t] - b[t]);
  }
  int t = 0;
  for (; t + kTileRows <= c.L; t += kTileRows) score_tile<kTileRows>(a, c, s, t);
  for (; t < c.L; ++t) score_tile<1>(a, c, s, t);
  for (t = 0; t < c.L; ++t) gate_scores(a, c, s, t);
  update_shared(a, c, s);
}

// Sums of products of a broadcast value with a row of columns: sum[r][v] += x[r] * row[v].
template <int ROWS, int VECTORS, class D>
HWY_INLINE void add_products(D d, const float* const (&x)[ROWS], int64_t x_at, const float* row,
                             hn::Vec<D> (&sum)[ROWS][VECTORS]) {
  HWY_UNROLL(4)
  for (int v = 0; v < VECTORS; ++v) {
    const auto columns = hn::LoadU(d, row + v * hn::MaxLanes(d));
    HWY_UNROLL(8)
    for (int r = 0; r < ROWS; ++r) {
      sum[r][v] = hn::MulAdd(hn::Set(d, x[r][x_at]), columns, sum[r][v]);
    }
  }
}

// h of ROWS rows from t on, VECTORS vectors of columns from `column` on.
template <int ROWS, int VECTORS, class D>
void output_tile(D d, const MlstmArgs& a, const MlstmChunk& c, const MlstmShared& s, int t,
                 int column) {
  const float* q[ROWS];
  const float* S[ROWS];
  hn::Vec<D> sum[ROWS][VECTORS];
  HWY_UNROLL(8)
  for (int r = 0; r < ROWS; ++r) {
    q[r] = c.q + int64_t{t + r} * a.stride;
    S[r] = s.S + int64_t{t + r} * s.S_stride;
    HWY_UNROLL(4)
    for (int v = 0; v < VECTORS; ++v) sum[r][v] = hn::Zero(d);
  }
  const float* C = c.C + column;
  for (int k = 0; k < a.DK; ++k) add_products(d, q, k, C + int64_t{k} * a.DV, sum);
  HWY_UNROLL(8)
  for (int r = 0; r < ROWS; ++r) {
    HWY_UNROLL(4)
    for (int v = 0; v < VECTORS; ++v) sum[r][v] = hn::Mul(sum[r][v], hn::Set(d, s.e[t + r]));
  }
  // The columns of S that all rows have, then the triangle: a row never meets a later token, which
  // might be NaN.
  const float* values = c.v + column;
  for (int j = 0; j <= t; ++j) add_products(d, S, j, values + int64_t{j} * a.stride, sum);
  HWY_UNROLL(8)
  for (int r = 1; r < ROWS; ++r) {
    for (int j = t + 1; j <= t + r; ++j) {
      HWY_UNROLL(4)
      for (int v = 0; v < VECTORS; ++v) {
        const float* at = values + int64_t{j} * a.stride + v * hn::MaxLanes(d);
        sum[r][v] = hn::MulAdd(hn::Set(d, S[r][j]), hn::LoadU(d, at), sum[r][v]);
      }
    }
  }
  HWY_UNROLL(8)
  for (int r = 0; r < ROWS; ++r) {
    float* h = c.h + int64_t{t + r} * a.H * a.DV + column;
    HWY_UNROLL(4)
    for (int v = 0; v < VECTORS; ++v) {
      hn::StoreU(hn::Div(sum[r][v], hn::Set(d, s.den[t + r])), d, h + v * hn::MaxLanes(d));
    }
  }
}

// ROWS rows of the new C from `row` on, VECTORS vectors of columns from `column` on.
template <int ROWS, int VECTORS, class D>
void state_tile(D d, const MlstmArgs& a, const MlstmChunk& c, const MlstmShared& s, int row,
                int column) {
  const float* Ik[ROWS];
  hn::Vec<D> sum[ROWS][VECTORS];
  float* C = c.C + int64_t{row} * a.DV + column;
  HWY_UNROLL(8)
  for (int r = 0; r < ROWS; ++r) {
    Ik[r] = s.Ik + row + r;
    HWY_UNROLL(4)
    for (int v = 0; v < VECTORS; ++v) {
      const auto old = hn::LoadU(d, C + int64_t{r} * a.DV + v * hn::MaxLanes(d));
      sum[r][v] = hn::Mul(hn::Set(d, s.F), old);
    }
  }
  for (int j = 0; j < c.L; ++j) {
    add_products(d, Ik, int64_t{j} * a.DK, c.v + int64_t{j} * a.stride + column, sum);
  }
  HWY_UNROLL(8)
  for (int r = 0; r < ROWS; ++r) {
    HWY_UNROLL(4)
    for (int v = 0; v < VECTORS; ++v) {
      hn::StoreU(sum[r][v], d, C + int64_t{r} * a.DV + v * hn::MaxLanes(d));
    }
  }
}

// All outputs and then the state of VECTORS vectors of columns.
template <int VECTORS, class D>
void chunk_strip(D d, const MlstmArgs& a, const MlstmChunk& c, const MlstmShared& s, int column) {
  int t = 0;
  for (; t + kTileRows <= c.L; t += kTileRows) {
    output_tile<kTileRows, VECTORS>(d, a, c, s, t, column);
  }
  for (; t + 2 <= c.L; t += 2) output_tile<2, VECTORS>(d, a, c, s, t, column);
  if (t < c.L) output_tile<1, VECTORS>(d, a, c, s, t, column);
  int row = 0;
  for (; row + kTileRows <= a.DK; row += kTileRows) {
    state_tile<kTileRows, VECTORS>(d, a, c, s, row, column);
  }
  for (; row + 2 <= a.DK; row += 2) state_tile<2, VECTORS>(d, a, c, s, row, column);
  if (row < a.DK) state_tile<1, VECTORS>(d, a, c, s, row, column);
}

void chunk_columns(const MlstmArgs& a, const MlstmChunk& c, const MlstmShared& s, int begin,
                   int count) {
  constexpr int kLanes = hn::MaxLanes(Floats());
  int column = begin;
  const int end = begin + count;
  for (; column + 4 * kLanes <= end; column += 4 * kLanes) {
    chunk_strip<4>(Floats(), a, c, s, column);
  }
  for (; column + kLanes <= end; column += kLanes) chunk_strip<1>(Floats(), a, c, s, column);
  for (; column < end; ++column) chunk_strip<1>(OneFloat(), a, c, s, column);
}

void mlstm_shared(const MlstmArgs& a, const MlstmChunk& c, MlstmShared& s) {
  if (c.L == 1) {
    step_shared(a, c, s);
  } else {
    chunk_shared(a, c, s);
  }
}

void mlstm_columns(const MlstmArgs& a, const MlstmChunk& c, const MlstmShared& s, int begin,
                   int count) {
  if (c.L == 1) {
    step_columns(a, c, s, begin, count);
  } else {
    chunk_columns(a, c, s, begin, count);
  }
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {
namespace {

HWY_EXPORT(mlstm_shared);
HWY_EXPORT(mlstm_columns);

// Columns that threads take as a whole: a multiple of every vector, so that a column is computed
// the same way however many threads there are.
constexpr int kColumns = 64;

int rows_of(const MlstmArgs& a, int seq) { return a.seqs.begin[seq + 1] - a.seqs.begin[seq]; }

// The chunk that begins with row `first` of the sequence.
MlstmChunk chunk_at(const MlstmArgs& a, int64_t seq, int64_t head, int first) {
  const int64_t row = a.seqs.begin[seq] + first;
  const int64_t state = int64_t{a.seqs.slot[seq]} * a.H + head;
  MlstmChunk c;
  c.L = std::min(a.chunk, rows_of(a, static_cast<int>(seq)) - first);
  c.q = a.q + row * a.stride + head * a.DK;
  c.k = a.k + row * a.stride + head * a.DK;
  c.v = a.v + row * a.stride + head * a.DV;
  c.i = a.i + row * a.stride + head;
  c.f = a.f + row * a.stride + head;
  c.C = a.C + state * a.DK * a.DV;
  c.n = a.n + state * a.DK;
  c.m = a.m + state;
  c.h = a.h + (row * a.H + head) * a.DV;
  return c;
}

// Grows and is kept, so that no step after the first of its size allocates.
float* scratch(size_t floats) {
  static thread_local std::vector<float> memory;
  if (memory.size() < floats) memory.resize(floats);
  return memory.data();
}

// Work of one head of one sequence, in the unit of kGrain.
int64_t cost_of_pair(const MlstmArgs& a) {
  const int64_t rows = (a.seqs.rows + a.seqs.num_seqs - 1) / a.seqs.num_seqs;
  return 2 * rows * a.DK * a.DV;
}

// One thread a pair of sequence and head, from its first chunk to its last.
void run_by_pair(const MlstmArgs& a, int64_t pair) {
  const int64_t seq = pair / a.H, head = pair % a.H;
  const int rows = rows_of(a, static_cast<int>(seq));
  float* memory = scratch(shared_room(a, std::min(a.chunk, rows)));
  for (int first = 0; first < rows;) {
    const MlstmChunk c = chunk_at(a, seq, head, first);
    MlstmShared s = shared_at(a, c.L, memory);
    HWY_DYNAMIC_DISPATCH(mlstm_shared)(a, c, s);
    HWY_DYNAMIC_DISPATCH(mlstm_columns)(a, c, s, 0, a.DV);
    first += c.L;
  }
}

// Fewer pairs than threads: pair after pair and chunk after chunk, the columns over the threads.
void run_by_columns(const MlstmArgs& a, int64_t pair, ThreadPool& pool) {
  const int64_t seq = pair / a.H, head = pair % a.H;
  const int rows = rows_of(a, static_cast<int>(seq));
  float* memory = scratch(shared_room(a, std::min(a.chunk, rows)));
  for (int first = 0; first < rows;) {
    const MlstmChunk c = chunk_at(a, seq, head, first);
    MlstmShared s = shared_at(a, c.L, memory);
    HWY_DYNAMIC_DISPATCH(mlstm_shared)(a, c, s);
    const int64_t strips = (a.DV + kColumns - 1) / kColumns;
    for_blocks(pool, strips, 2 * int64_t{c.L} * a.DK * kColumns, [&](int64_t begin, int64_t end) {
      const int column = static_cast<int>(begin) * kColumns;
      const int count = std::min(static_cast<int>(end) * kColumns, a.DV) - column;
      HWY_DYNAMIC_DISPATCH(mlstm_columns)(a, c, s, column, count);
    });
    first += c.L;
  }
}

}  // namespace

void mlstm(const MlstmArgs& args, Stream& stream) {
  ThreadPool& pool = pool_of(stream);
  const int64_t pairs = int64_t{args.seqs.num_seqs} * args.H;
  if (pairs == 0) return;
  if (pairs < pool.threads()) {
    for (int64_t pair = 0; pair < pairs; ++pair) run_by_columns(args, pair, pool);
    return;
  }
  for_blocks(pool, pairs, cost_of_pair(args), [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) run_by_pair(args, pair);
  });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
