#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"
#include "kernels/open_state.h"

// A chunk of one head of one sequence is three products of matrices, of which two are masked:
//   scores (L, L) = C B^T, gated    y (L, P) = e C h^T + scores x    h (P, N) = F h + (g x)^T B

#ifndef RECURVE_CPU_SSD_ONCE
#define RECURVE_CPU_SSD_ONCE
namespace recurve::cpu {

// One chunk of one head of one sequence.
struct SsdChunk {
  int L;            // rows; 1: the step form
  float skip;       // scalar
  float dt_bias;    // scalar
  float A;          // scalar
  const float* x;   // (L, P), args.xBC_stride floats apart
  const float* B;   // (L, N), likewise
  const float* C;   // (L, N), likewise
  const float* dt;  // (L), args.dt_stride floats apart
  const float* z;   // (L, P), args.z_stride floats apart, or null
  float* h;         // (P, N)
  float* y;         // (L, P), H P floats apart
};

// Scratch of a chunk.
struct SsdScratch {
  float* dt;         // (L)
  float* e;          // (L) what is left at each row of the state before the chunk
  float* S;          // (L, S_stride) gated scores, valid for j <= t
  float* gx;         // (L, P) x with the factor it enters the state with
  float* exponents;  // (L) of the gates of one row's scores
  double* a_sum;  // (L) sum of dt A up to and including the row; double, as differences are taken
  int S_stride;
};

inline int ssd_scores_stride(int L) { return (L + 3) / 4 * 4; }

inline size_t ssd_room(const SsdArgs& a, int L) {
  return static_cast<size_t>(L) * (ssd_scores_stride(L) + a.P + 5) + 2;
}

inline SsdScratch ssd_scratch_at(int L, float* memory) {
  SsdScratch s;
  s.S_stride = ssd_scores_stride(L);
  s.a_sum = reinterpret_cast<double*>(memory);
  s.dt = memory + 2 * int64_t{L};
  s.e = s.dt + L;
  s.exponents = s.e + L;
  s.S = s.exponents + L;
  s.gx = s.S + int64_t{L} * s.S_stride;
  return s;
}

inline float time_step(const SsdArgs& a, const SsdChunk& c, int t) {
  const float x = c.dt[int64_t{t} * a.dt_stride] + c.dt_bias;
  const float dt = x > 20.0f ? x : std::log1p(std::exp(x));
  if (dt < a.dt_min) return a.dt_min;
  return dt > a.dt_max ? a.dt_max : dt;  // NaN stays
}

}  // namespace recurve::cpu
#endif  // RECURVE_CPU_SSD_ONCE

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/ssd.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/dot_tile-inl.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// ---- step form

// ROWS rows of the state from p on: read, advanced, written and used while they are at hand.
template <int ROWS>
HWY_INLINE void step_rows(int N, float decay, float dt, const SsdChunk& c, int p) {
  constexpr int kLanes = hn::MaxLanes(Floats());
  const Floats d;
  float* h[ROWS];
  float put_in[ROWS];
  hn::Vec<Floats> sum[ROWS];
  HWY_UNROLL(4)
  for (int r = 0; r < ROWS; ++r) {
    h[r] = c.h + int64_t{p + r} * N;
    put_in[r] = dt * c.x[p + r];
    sum[r] = hn::Zero(d);
  }
  int n = 0;
  for (; n + kLanes <= N; n += kLanes) {
    const auto B = hn::LoadU(d, c.B + n), C = hn::LoadU(d, c.C + n);
    HWY_UNROLL(4)
    for (int r = 0; r < ROWS; ++r) {
      const auto added = hn::Mul(hn::Set(d, put_in[r]), B);
      const auto state = hn::MulAdd(hn::Set(d, decay), hn::LoadU(d, h[r] + n), added);
      hn::StoreU(state, d, h[r] + n);
      sum[r] = hn::MulAdd(C, state, sum[r]);
    }
  }
  HWY_UNROLL(4)
  for (int r = 0; r < ROWS; ++r) {
    float y = hn::GetLane(hn::SumOfLanes(d, sum[r]));
    for (int rest = n; rest < N; ++rest) {
      h[r][rest] = decay * h[r][rest] + put_in[r] * c.B[rest];
      y += c.C[rest] * h[r][rest];
    }
    c.y[p + r] = y + c.skip * c.x[p + r];
  }
}

void ssd_step(const SsdArgs& a, const SsdChunk& c) {
  const float dt = time_step(a, c, 0);
  const float decay = std::exp(dt * c.A);
  int p = 0;
  for (; p + 4 <= a.P; p += 4) step_rows<4>(a.N, decay, dt, c, p);
  for (; p < a.P; ++p) step_rows<1>(a.N, decay, dt, c, p);
}

// A row of y, times silu(z).
void gate(int64_t P, const float* z, float* y) {
  for_lanes(P, [&](auto d, int64_t p) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::LoadU(d, y + p), silu(d, hn::LoadU(d, z + p))), d, y + p);
  });
}

// ---- chunk form

// e C h^T of ROWS rows from t on, without the e, to y.
template <int ROWS>
void read_rows(const SsdArgs& a, const SsdChunk& c, int t) {
  const float* C[ROWS];
  float* y[ROWS];
  for (int r = 0; r < ROWS; ++r) {
    C[r] = c.C + int64_t{t + r} * a.xBC_stride;
    y[r] = c.y + int64_t{t + r} * a.H * a.P;
  }
  dot_rows(a.N, C, c.h, a.N, a.P, y);
}

void gate_scores(const SsdScratch& s, int t) {
  float* S = s.S + int64_t{t} * s.S_stride;
  // Differences of sums that may be large: in double, then small.
  for (int j = 0; j <= t; ++j) s.exponents[j] = static_cast<float>(s.a_sum[t] - s.a_sum[j]);
  for_lanes(t + 1, [&](auto d, int64_t j) HWY_ATTR {
    const auto gate = hn::Mul(exp(d, hn::LoadU(d, s.exponents + j)), hn::LoadU(d, s.dt + j));
    hn::StoreU(hn::Mul(hn::LoadU(d, S + j), gate), d, S + j);
  });
}

// y_t = e_t y_t + skip x_t + sum over j <= t of S_tj x_j, for COUNT vectors of y_t from p on: so
// many sums that none waits for itself. A row never meets a later one, which might be NaN.
template <int COUNT, class D>
HWY_INLINE void finish_vectors(D d, const SsdArgs& a, const SsdChunk& c, const SsdScratch& s, int t,
                               int64_t p) {
  constexpr int64_t kLanes = hn::MaxLanes(d);
  const float* S = s.S + int64_t{t} * s.S_stride;
  float* y = c.y + int64_t{t} * a.H * a.P + p;
  hn::Vec<D> sum[COUNT];
  HWY_UNROLL(8)
  for (int i = 0; i < COUNT; ++i) {
    sum[i] = hn::Mul(hn::Set(d, s.e[t]), hn::LoadU(d, y + i * kLanes));
  }
  const float* x = c.x + p;
  for (int j = 0; j <= t; ++j, x += a.xBC_stride) {
    const auto score = hn::Set(d, S[j]);
    HWY_UNROLL(8)
    for (int i = 0; i < COUNT; ++i) {
      sum[i] = hn::MulAdd(score, hn::LoadU(d, x + i * kLanes), sum[i]);
    }
  }
  x -= a.xBC_stride;
  HWY_UNROLL(8)
  for (int i = 0; i < COUNT; ++i) {
    sum[i] = hn::MulAdd(hn::Set(d, c.skip), hn::LoadU(d, x + i * kLanes), sum[i]);
    hn::StoreU(sum[i], d, y + i * kLanes);
  }
}

void finish_output(const SsdArgs& a, const SsdChunk& c, const SsdScratch& s, int t) {
  constexpr int64_t kLanes = hn::MaxLanes(Floats());
  int64_t p = 0;
  for (; p + 8 * kLanes <= a.P; p += 8 * kLanes) finish_vectors<8>(Floats(), a, c, s, t, p);
  for (; p + 4 * kLanes <= a.P; p += 4 * kLanes) finish_vectors<4>(Floats(), a, c, s, t, p);
  for (; p + kLanes <= a.P; p += kLanes) finish_vectors<1>(Floats(), a, c, s, t, p);
  for (; p < a.P; ++p) finish_vectors<1>(OneFloat(), a, c, s, t, p);
}

// ROWS rows of the new state from p on.
template <int ROWS>
void update_rows(const SsdArgs& a, const SsdChunk& c, const SsdScratch& s, float F, int p) {
  float* h = c.h + int64_t{p} * a.N;
  for_lanes(a.N, [&](auto d, int64_t n) HWY_ATTR {
    hn::Vec<decltype(d)> sum[ROWS];
    HWY_UNROLL(8)
    for (int r = 0; r < ROWS; ++r) {
      sum[r] = hn::Mul(hn::Set(d, F), hn::LoadU(d, h + int64_t{r} * a.N + n));
    }
    for (int j = 0; j < c.L; ++j) {
      const auto B = hn::LoadU(d, c.B + int64_t{j} * a.xBC_stride + n);
      const float* gx = s.gx + int64_t{j} * a.P + p;
      HWY_UNROLL(8)
      for (int r = 0; r < ROWS; ++r) sum[r] = hn::MulAdd(hn::Set(d, gx[r]), B, sum[r]);
    }
    HWY_UNROLL(8)
    for (int r = 0; r < ROWS; ++r) hn::StoreU(sum[r], d, h + int64_t{r} * a.N + n);
  });
}

void update_state(const SsdArgs& a, const SsdChunk& c, const SsdScratch& s) {
  const double total = s.a_sum[c.L - 1];
  for (int j = 0; j < c.L; ++j) {
    const float factor = std::exp(static_cast<float>(total - s.a_sum[j])) * s.dt[j];
    const float* x = c.x + int64_t{j} * a.xBC_stride;
    float* gx = s.gx + int64_t{j} * a.P;
    for_lanes(a.P, [&](auto d, int64_t p) HWY_ATTR {
      hn::StoreU(hn::Mul(hn::Set(d, factor), hn::LoadU(d, x + p)), d, gx + p);
    });
  }
  const float F = std::exp(static_cast<float>(total));
  int p = 0;
  for (; p + 8 <= a.P; p += 8) update_rows<8>(a, c, s, F, p);
  for (; p < a.P; ++p) update_rows<1>(a, c, s, F, p);
}

void ssd_chunk(const SsdArgs& a, const SsdChunk& c, const SsdScratch& s) {
  double sum = 0;
  for (int t = 0; t < c.L; ++t) {
    s.dt[t] = time_step(a, c, t);
    sum += s.dt[t] * c.A;
    s.a_sum[t] = sum;
    s.e[t] = std::exp(static_cast<float>(sum));
  }
  dot_triangle(a.N, c.L, c.C, a.xBC_stride, c.B, a.xBC_stride, s.S, s.S_stride);
  int t = 0;
  for (; t + kTileRows <= c.L; t += kTileRows) read_rows<kTileRows>(a, c, t);
  for (; t < c.L; ++t) read_rows<1>(a, c, t);
  for (t = 0; t < c.L; ++t) {
    gate_scores(s, t);
    finish_output(a, c, s, t);
  }
  update_state(a, c, s);
}

void ssd_run(const SsdArgs& a, const SsdChunk& c, const SsdScratch& s) {
  if (c.L == 1) {
    ssd_step(a, c);
  } else {
    ssd_chunk(a, c, s);
  }
  for (int64_t t = 0; c.z != nullptr && t < c.L; ++t) {
    gate(a.P, c.z + t * a.z_stride, c.y + t * a.H * a.P);
  }
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {
namespace {

HWY_EXPORT(ssd_run);

int rows_of(const SsdArgs& a, int64_t seq) { return a.seqs.begin[seq + 1] - a.seqs.begin[seq]; }

// The chunk that begins with row `first` of the sequence.
SsdChunk chunk_at(const SsdArgs& a, int64_t seq, int64_t head, int first, float* h) {
  const int64_t row = a.seqs.begin[seq] + first, group = head / (a.H / a.G);
  return {.L = std::min(a.chunk, rows_of(a, seq) - first),
          .skip = a.skip[head],
          .dt_bias = a.dt_bias[head],
          .A = a.A[head],
          .x = a.x + row * a.xBC_stride + head * a.P,
          .B = a.B + row * a.xBC_stride + group * a.N,
          .C = a.C + row * a.xBC_stride + group * a.N,
          .dt = a.dt + row * a.dt_stride + head,
          .z = a.z == nullptr ? nullptr : a.z + row * a.z_stride + head * a.P,
          .h = h,
          .y = a.y + (row * a.H + head) * a.P};
}

}  // namespace

// One thread a pair of sequence and head, from its first chunk to its last: every model has far
// more heads than a machine has threads.
void run(const SsdArgs& args, Stream& stream) {
  const int64_t pairs = int64_t{args.seqs.num_seqs} * args.H;
  if (pairs == 0) return;
  const int64_t rows = (args.seqs.rows + args.seqs.num_seqs - 1) / args.seqs.num_seqs;
  const int64_t matrix = int64_t{args.P} * args.N, cost = 2 * rows * matrix;
  for_blocks(pool_of(stream), pairs, cost, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) {
      const int64_t seq = pair / args.H, head = pair % args.H;
      const size_t room = ssd_room(args, std::min(args.chunk, rows_of(args, seq)));
      float* memory = scratch(room + OpenState::room(args.h, matrix));
      const int64_t state = int64_t{args.seqs.slot[seq]} * args.H + head;
      OpenState h(args.h, state * matrix, matrix, memory + room);
      for (int first = 0; first < rows_of(args, seq);) {
        const SsdChunk c = chunk_at(args, seq, head, first, h.values());
        HWY_DYNAMIC_DISPATCH(ssd_run)(args, c, ssd_scratch_at(c.L, memory));
        first += c.L;
        h.end_chunk();
      }
    }
  });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
