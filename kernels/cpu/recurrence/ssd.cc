#include <algorithm>
#include <cmath>

#include "kernels/cpu/aligned_memory.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/recurrence/matrix_state.h"
#include "kernels/cpu/recurrence/open_state.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

// The chunk form in two passes: what the heads of a group share, which is the scores C . B_j of
// each chunk, then each head from its first chunk to its last. What a head does with a chunk is the
// second stage of matrix_state.h,
//   h' = F h + sum_j g_j B_j x_j^T   y_t = e_t C_t h + sum_{j <= t} P_tj x_j
// for a state that is turned over, (N, P), as long as chunks of the head follow each other.

#ifndef RECURVE_CPU_SSD_ONCE
#define RECURVE_CPU_SSD_ONCE
namespace recurve::cpu {

// What the heads of a group share of a chunk.
struct SsdShared {
  float* B;       // (L, N), dense
  float* C;       // (L, N), dense
  float* scores;  // (L, padded(L)) C . B_j, valid for j <= t
};

// One chunk of one head of one sequence.
struct SsdChunk {
  int L;                // rows; 1: the step form
  float skip;           // scalar
  float dt_bias;        // scalar
  float A;              // scalar
  const float* x;       // (L, P), args.xBC_stride floats apart
  const float* B;       // (L, N), the same stride
  const float* C;       // (L, N), the same stride
  const float* dt;      // (L), args.dt_stride floats apart
  const float* z;       // (L, P), args.z_stride floats apart, or null
  const float* next_x;  // x of the next chunk, or null
  SsdShared shared;     // of the chunk form
  StateData h;          // (P, N); chunk form: (N, P), in fp32
  float* y;             // (L, P), H P floats apart
};

// Rows that vectors take as a whole, so that none has a rest.
inline int64_t padded(int64_t rows) { return (rows + 15) / 16 * 16; }

// Scratch of a chunk.
struct SsdScratch {
  float* P;      // (L, padded(L)) gated scores, valid for j <= t
  float* F;      // (N) what is left of the state after the chunk, the same for all
  float* dt;     // (padded(L))
  float* upper;  // (padded(L)) sum of dt A up to and including the row
  float* lower;  // (padded(L)) what upper lacks of it
  float* e;      // (padded(L)) what is left at the row of the state before the chunk
  float* g;      // (padded(L)) the factor that the row enters the state with
};

inline size_t ssd_floats(const SsdArgs& a, int L) {
  return static_cast<size_t>((L + 5) * padded(L) + a.N);
}

inline SsdScratch ssd_scratch_at(const SsdArgs& a, int L, float* memory) {
  SsdScratch s;
  s.P = memory;
  s.F = s.P + L * padded(L);
  s.dt = s.F + a.N;
  s.upper = s.dt + padded(L);
  s.lower = s.upper + padded(L);
  s.e = s.lower + padded(L);
  s.g = s.e + padded(L);
  return s;
}

}  // namespace recurve::cpu
#endif  // RECURVE_CPU_SSD_ONCE

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/recurrence/ssd.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/fetch.h"
#include "kernels/cpu/linear/dot_tile-inl.h"
#include "kernels/cpu/recurrence/stored_state-inl.h"
#include "kernels/cpu/transpose-inl.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// ---- step form

// ROWS rows of the state from p on: read, advanced, written and used while they are at hand.
// stored: the state
template <int ROWS, class T>
HWY_INLINE void step_rows(int N, float decay, float dt, const SsdChunk& c, int p, T* stored) {
  constexpr int kLanes = hn::MaxLanes(Floats());
  const Floats d;
  T* h[ROWS];
  float put_in[ROWS];
  hn::Vec<Floats> sum[ROWS];
  HWY_UNROLL(4)
  for (int r = 0; r < ROWS; ++r) {
    h[r] = stored + int64_t{p + r} * N;
    put_in[r] = dt * c.x[p + r];
    sum[r] = hn::Zero(d);
  }
  int n = 0;
  for (; n + kLanes <= N; n += kLanes) {
    const auto B = hn::LoadU(d, c.B + n), C = hn::LoadU(d, c.C + n);
    HWY_UNROLL(4)
    for (int r = 0; r < ROWS; ++r) {
      fetch_state(d, h[r], n);
      const auto added = hn::Mul(hn::Set(d, put_in[r]), B);
      const auto state = hn::MulAdd(hn::Set(d, decay), load_state(d, h[r] + n), added);
      store_state(d, state, h[r] + n);
      sum[r] = hn::MulAdd(C, state, sum[r]);
    }
  }
  HWY_UNROLL(4)
  for (int r = 0; r < ROWS; ++r) {
    const OneFloat one;
    auto y = hn::Set(one, hn::GetLane(hn::SumOfLanes(d, sum[r])));
    for (int rest = n; rest < N; ++rest) {
      const auto added = hn::Mul(hn::Set(one, put_in[r]), hn::Set(one, c.B[rest]));
      const auto state = hn::MulAdd(hn::Set(one, decay), load_state(one, h[r] + rest), added);
      store_state(one, state, h[r] + rest);
      y = hn::MulAdd(hn::Set(one, c.C[rest]), state, y);
    }
    c.y[p + r] = hn::GetLane(hn::MulAdd(hn::Set(one, c.skip), hn::Set(one, c.x[p + r]), y));
  }
}

template <class D>
HWY_INLINE hn::Vec<D> time_step(D d, const SsdArgs& a, hn::Vec<D> x, float bias) {
  const auto least = hn::Set(d, a.dt_min), most = hn::Set(d, a.dt_max);
  const auto dt = softplus(d, hn::Add(x, hn::Set(d, bias)));
  return hn::IfThenElse(hn::Lt(dt, least), least, hn::IfThenElse(hn::Gt(dt, most), most, dt));
}

void ssd_step(const SsdArgs& a, const SsdChunk& c) {
  const OneFloat one;
  const float dt = hn::GetLane(time_step(one, a, hn::Set(one, c.dt[0]), c.dt_bias));
  const float decay = std::exp(dt * c.A);
  with_stored(c.h, [&](auto* h) HWY_ATTR {
    int p = 0;
    for (; p + 4 <= a.P; p += 4) step_rows<4>(a.N, decay, dt, c, p, h);
    for (; p < a.P; ++p) step_rows<1>(a.N, decay, dt, c, p, h);
  });
}

// COUNT vectors of a row of y, times silu(z).
template <int COUNT, class D>
HWY_INLINE void gate_vectors(D d, const float* z, float* y) {
  constexpr int64_t kLanes = hn::MaxLanes(d);
  hn::Vec<D> gates[COUNT];
  each<COUNT>([&](int i) HWY_ATTR { gates[i] = hn::LoadU(d, z + i * kLanes); });
  silus(d, gates);
  each<COUNT>([&](int i) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::LoadU(d, y + i * kLanes), gates[i]), d, y + i * kLanes);
  });
}

// A row of y, times silu(z).
void gate(int64_t P, const float* z, float* y) {
  for_several<kTogether>(
      P, [&]<int COUNT>(auto d, int64_t p) HWY_ATTR { gate_vectors<COUNT>(d, z + p, y + p); });
}

// ---- chunk form

// B, C: (L, N), args.xBC_stride floats apart
void share(const SsdArgs& a, int L, const float* B, const float* C, const SsdShared& to) {
  for (int64_t t = 0; t < L; ++t) {
    std::copy_n(B + t * a.xBC_stride, a.N, to.B + t * a.N);
    std::copy_n(C + t * a.xBC_stride, a.N, to.C + t * a.N);
  }
  dot_triangle(a.N, L, to.C, a.N, to.B, a.N, to.scores, padded(L));
}

// Calls body(d, row) for vectors of rows of a chunk, the last of which may go beyond it.
template <class Body>
HWY_INLINE void for_rows(int64_t rows, Body body) {
  constexpr int64_t kLanes = hn::MaxLanes(Floats());
  static_assert(16 % kLanes == 0);
  for (int64_t row = 0; row < rows; row += kLanes) body(Floats(), row);
}

// exp of the sum of dt A over the rows from j + 1 to t. Sums may be large where their difference is
// small: so they are sums of two numbers.
template <class D>
HWY_INLINE hn::Vec<D> decay_between(D d, const SsdScratch& s, int64_t j, int64_t t) {
  const auto upper = hn::Sub(hn::Set(d, s.upper[t]), hn::LoadU(d, s.upper + j));
  const auto lower = hn::Sub(hn::Set(d, s.lower[t]), hn::LoadU(d, s.lower + j));
  return exp(d, hn::Add(upper, lower));
}

void sum_decays(const SsdArgs& a, const SsdChunk& c, const SsdScratch& s) {
  for (int64_t t = 0; t < c.L; ++t) s.dt[t] = c.dt[t * a.dt_stride];
  std::fill(s.dt + c.L, s.dt + padded(c.L), 0.0f);
  for_rows(c.L, [&](auto d, int64_t t) HWY_ATTR {
    hn::StoreU(time_step(d, a, hn::LoadU(d, s.dt + t), c.dt_bias), d, s.dt + t);
  });
  double sum = 0;
  for (int64_t t = 0; t < padded(c.L); ++t) {
    if (t < c.L) sum += s.dt[t] * c.A;
    s.upper[t] = static_cast<float>(sum);
    s.lower[t] = static_cast<float>(sum - s.upper[t]);
  }
  for_rows(c.L, [&](auto d, int64_t t)
                    HWY_ATTR { hn::StoreU(exp(d, hn::LoadU(d, s.upper + t)), d, s.e + t); });
}

MatrixRows ssd_rows(const SsdArgs& a, const SsdChunk& c, float* memory) {
  const SsdScratch s = ssd_scratch_at(a, c.L, memory);
  const int64_t stride = padded(c.L), last = c.L - 1;
  sum_decays(a, c, s);
  for (int64_t t = 0; t < c.L; ++t) {
    float* P = s.P + t * stride;
    // What comes after the products is fetched meanwhile.
    if (c.z != nullptr) fetch_row<FetchFar::kLocality>(c.z + t * a.z_stride, a.P);
    if (c.next_x != nullptr) fetch_row<FetchFar::kLocality>(c.next_x + t * a.xBC_stride, a.P);
    for_rows(t + 1, [&](auto d, int64_t j) HWY_ATTR {
      const auto gate = hn::Mul(decay_between(d, s, j, t), hn::LoadU(d, s.dt + j));
      hn::StoreU(hn::Mul(hn::LoadU(d, c.shared.scores + t * stride + j), gate), d, P + j);
    });
    P[t] += c.skip;
  }
  for_rows(c.L, [&](auto d, int64_t j) HWY_ATTR {
    hn::StoreU(hn::Mul(decay_between(d, s, j, last), hn::LoadU(d, s.dt + j)), d, s.g + j);
  });
  std::fill_n(s.F, a.N, s.e[last]);
  return {.L = c.L,
          .DK = a.N,
          .DV = a.P,
          .P_stride = static_cast<int>(stride),
          .q = c.shared.C,
          .k = c.shared.B,
          .F = s.F,
          .P = s.P,
          .den = nullptr,
          .e = s.e,
          .g = s.g,
          .v_stride = a.xBC_stride,
          .o_stride = int64_t{a.H} * a.P,
          .v = c.x,
          .S = c.h,
          .o = c.y};
}

// A head's state, (P, N) as it is stored, turned over to h, (N, P), and back.
void take_turned(const SsdArgs& a, const StateData& state, float* h) {
  with_stored(state, [&](auto* stored) { turn(a.P, a.N, stored, a.N, h, a.P); });
}
void put_turned(const SsdArgs& a, const float* h, const StateData& state) {
  with_stored(state, [&](auto* stored) { turn(a.N, a.P, h, a.P, stored, a.N); });
}

void gate_rows(const SsdArgs& a, const SsdChunk& c) {
  for (int64_t t = 0; t < c.L; ++t) gate(a.P, c.z + t * a.z_stride, c.y + t * a.H * a.P);
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {
namespace {

HWY_EXPORT(ssd_step);
HWY_EXPORT(share);
HWY_EXPORT(ssd_rows);
HWY_EXPORT(take_turned);
HWY_EXPORT(put_turned);
HWY_EXPORT(gate_rows);

int rows_of(const SsdArgs& a, int64_t seq) { return a.seqs.begin[seq + 1] - a.seqs.begin[seq]; }

// Of the chunk that begins with row `first` of the sequence.
int chunk_rows(const SsdArgs& a, int64_t seq, int first) {
  return std::min(a.chunk, rows_of(a, seq) - first);
}

// What the chunk shares within a group. memory: of all chunks, a group's after the other's
SsdShared shared_at(const SsdArgs& a, int64_t seq, int64_t group, int first, float* memory) {
  const int64_t row = a.seqs.begin[seq] + first, L = chunk_rows(a, seq, first);
  const int64_t most = padded(std::min(a.chunk, a.seqs.max_len));
  SsdShared shared;
  shared.B = memory + (row * a.G + group * L) * (2 * int64_t{a.N} + most);
  shared.C = shared.B + L * a.N;
  shared.scores = shared.C + L * a.N;
  return shared;
}

// Of all chunks. The scratch of a head: its state that is turned over, and that of a chunk.
int64_t shared_floats(const SsdArgs& a) {
  const int64_t most = std::min(a.chunk, a.seqs.max_len);
  return most <= 1 ? 0 : int64_t{a.seqs.rows} * a.G * (2 * a.N + padded(most));
}
size_t head_floats(const SsdArgs& a, int L) {
  return static_cast<size_t>(a.P) * static_cast<size_t>(a.N) + ssd_floats(a, L);
}

// The first pass. null: there are but steps.
float* share_chunks(const SsdArgs& a, ThreadPool& pool) {
  static thread_local AlignedMemory memory;
  const int64_t most = std::min(a.chunk, a.seqs.max_len);
  if (most <= 1) return nullptr;
  float* const all = memory.reserve<float>(shared_floats(a));
  const int64_t chunks = ceil_div(a.seqs.max_len, a.chunk), items = chunks * a.G;
  for_blocks(pool, a.seqs.num_seqs * items, most * most * a.N / 2, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t seq = item / items, group = item % a.G;
      const int first = static_cast<int>(item % items / a.G) * a.chunk;
      if (first >= rows_of(a, seq)) continue;
      const int64_t at = (a.seqs.begin[seq] + first) * int64_t{a.xBC_stride} + group * a.N;
      HWY_DYNAMIC_DISPATCH(share)
      (a, chunk_rows(a, seq, first), a.B + at, a.C + at, shared_at(a, seq, group, first, all));
    }
  });
  return all;
}

// The chunk that begins with row `first` of the sequence. shared: of all chunks
SsdChunk chunk_at(const SsdArgs& a, int64_t seq, int64_t head, int first, float* shared,
                  StateData h) {
  const int64_t row = a.seqs.begin[seq] + first, group = head / (a.H / a.G);
  const int L = chunk_rows(a, seq, first);
  return {.L = L,
          .skip = a.skip[head],
          .dt_bias = a.dt_bias[head],
          .A = a.A[head],
          .x = a.x + row * a.xBC_stride + head * a.P,
          .B = a.B + row * a.xBC_stride + group * a.N,
          .C = a.C + row * a.xBC_stride + group * a.N,
          .dt = a.dt + row * a.dt_stride + head,
          .z = a.z == nullptr ? nullptr : a.z + row * a.z_stride + head * a.P,
          .next_x = first + 2 * L > rows_of(a, seq) ? nullptr
                                                    : a.x + (row + L) * a.xBC_stride + head * a.P,
          .shared = L == 1 ? SsdShared{} : shared_at(a, seq, group, first, shared),
          .h = h,
          .y = a.y + (row * a.H + head) * a.P};
}

// A head of a sequence, from its first chunk to its last: all but the last have `chunk` rows.
void run_head(const SsdArgs& a, int64_t seq, int64_t head, float* shared) {
  const int64_t matrix = int64_t{a.P} * a.N, rows = rows_of(a, seq);
  const int most = chunk_rows(a, seq, 0);
  const bool turned = most > 1;
  float* const memory = scratch(turned ? head_floats(a, most) : 0);
  const StateData h = stored_from(a.h, (int64_t{a.seqs.slot[seq]} * a.H + head) * matrix);
  const auto finish = [&](const SsdChunk& c) {
    if (c.z != nullptr) HWY_DYNAMIC_DISPATCH(gate_rows)(a, c);
  };
  int first = 0;
  if (turned) {
    HWY_DYNAMIC_DISPATCH(take_turned)(a, h, memory);
    while (first < rows && chunk_rows(a, seq, first) > 1) {
      const SsdChunk c = chunk_at(a, seq, head, first, shared, memory);
      advance_columns(HWY_DYNAMIC_DISPATCH(ssd_rows)(a, c, memory + matrix), 0, a.P);
      round_as(h, memory, matrix);
      finish(c);
      first += c.L;
    }
    HWY_DYNAMIC_DISPATCH(put_turned)(a, memory, h);
  }
  for (; first < rows; ++first) {
    const SsdChunk c = chunk_at(a, seq, head, first, nullptr, h);
    HWY_DYNAMIC_DISPATCH(ssd_step)(a, c);
    finish(c);
  }
}

}  // namespace

ScratchBytes scratch_of(const SsdArgs& a) {
  const int most = std::min(a.chunk, a.seqs.max_len);
  if (most <= 1) return {};
  return {.call = static_cast<size_t>(shared_floats(a)) * sizeof(float),
          .thread = (head_floats(a, most) + advance_floats(a.N, most)) * sizeof(float)};
}

// One thread a pair of sequence and head: every model has far more heads than a machine has
// threads.
void run(const SsdArgs& args, Stream& stream) {
  const int64_t pairs = int64_t{args.seqs.num_seqs} * args.H;
  if (pairs == 0) return;
  float* const shared = share_chunks(args, pool_of(stream));
  const int64_t rows = ceil_div(args.seqs.rows, args.seqs.num_seqs);
  const int64_t cost = 2 * rows * args.P * args.N;
  for_blocks(pool_of(stream), pairs, cost, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) {
      run_head(args, pair / args.H, pair % args.H, shared);
    }
  });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
