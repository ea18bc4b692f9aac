#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

// A row of all sequences that still have one is a time step: the matrices of a head are at hand for
// all of them. Each output is written to y alone, which the next time step reads as h, so that no
// channel waits for another within a time step.

#ifndef RECURVE_CPU_RNN_ONCE
#define RECURVE_CPU_RNN_ONCE
namespace recurve::cpu {

// Channels of a head that are computed together: a multiple of every vector, so that a channel is
// computed the same way however many threads there are.
inline constexpr int kRnnChannels = 32;

// Channels [begin, end) of one head, at time step t.
struct RnnBlock {
  int t;
  int64_t head;
  int64_t begin, end;
};

}  // namespace recurve::cpu
#endif  // RECURVE_CPU_RNN_ONCE

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/recurrence/rnn.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/linear/dot_tile-inl.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// Vectors of neighbouring channels: what their gates get from the input and from the state.
template <class D>
struct Gates {
  using V = hn::Vec<D>;
  V x[4], s[4];
  V u(int gate) const { return hn::Add(x[gate], s[gate]); }
};

// ---- the cells: the new h of channels whose old one is h, their other states being read and
// written

template <class D>
HWY_INLINE hn::Vec<D> gru_mix(D d, const Gates<D>& g, hn::Vec<D> candidate, hn::Vec<D> h) {
  const auto z = sigmoid(d, g.u(1));
  const auto fresh = tanh(d, hn::MulAdd(sigmoid(d, g.u(0)), candidate, g.x[2]));
  return hn::MulAdd(hn::Sub(hn::Set(d, 1.0f), z), fresh, hn::Mul(z, h));
}

template <class D>
HWY_INLINE hn::Vec<D> lstm(D d, const Gates<D>& g, float* cell) {
  const auto put_in = hn::Mul(sigmoid(d, g.u(0)), tanh(d, g.u(2)));
  const auto c = hn::MulAdd(sigmoid(d, g.u(1)), hn::LoadU(d, cell), put_in);
  hn::StoreU(c, d, cell);
  return hn::Mul(sigmoid(d, g.u(3)), tanh(d, c));
}

template <class D>
HWY_INLINE hn::Vec<D> slstm(D d, const Gates<D>& g, float n_min, float* cell, float* norm,
                            float* stabiliser) {
  const auto one = hn::Set(d, 1.0f);
  const auto old_n = hn::LoadU(d, norm);
  const auto i = g.u(0), l = hn::Add(log_sigmoid(d, g.u(1)), hn::LoadU(d, stabiliser));
  const auto larger = hn::IfThenElse(hn::Lt(l, i), i, l);
  const auto m = hn::IfThenElse(hn::Eq(old_n, hn::Zero(d)), i, larger);
  const auto bounded_exp = [&](hn::Vec<D> x) HWY_ATTR {
    const auto e = exp(d, x);
    return hn::IfThenElse(hn::Gt(e, one), one, e);  // NaN stays
  };
  const auto I = bounded_exp(hn::Sub(i, m)), F = bounded_exp(hn::Sub(l, m));
  const auto c = hn::MulAdd(F, hn::LoadU(d, cell), hn::Mul(I, tanh(d, g.u(2))));
  auto n = hn::MulAdd(F, old_n, I);
  n = hn::IfThenElse(hn::Lt(n, hn::Set(d, n_min)), hn::Set(d, n_min), n);
  hn::StoreU(m, d, stabiliser);
  hn::StoreU(c, d, cell);
  hn::StoreU(n, d, norm);
  return hn::Div(hn::Mul(sigmoid(d, g.u(3)), c), n);
}

// `state`: where the channels' states are in the arrays of states.
template <RnnCell CELL, class D>
HWY_INLINE hn::Vec<D> advance(D d, const RnnArgs& a, const Gates<D>& g, int64_t state,
                              hn::Vec<D> h) {
  if constexpr (CELL == RnnCell::kElman) {
    return tanh(d, g.u(0));
  } else if constexpr (CELL == RnnCell::kLstm) {
    return lstm(d, g, a.c + state);
  } else if constexpr (CELL == RnnCell::kGru) {
    return gru_mix(d, g, g.s[2], h);
  } else if constexpr (CELL == RnnCell::kFlashGru) {
    return gru_mix(d, g, tanh(d, g.s[2]), h);
  } else {
    static_assert(CELL == RnnCell::kSlstm);
    return slstm(d, g, a.n_min, a.c + state, a.n + state, a.m + state);
  }
}

// ---- a time step

// The output before row t of a sequence: (H, DH).
HWY_INLINE const float* h_before(const RnnArgs& a, int seq, int t) {
  const int64_t D = int64_t{a.H} * a.DH;
  return t == 0 ? a.h + a.seqs.slot[seq] * D : a.y + (a.seqs.begin[seq] + t - 1) * D;
}

// What the gates of ROWS sequences get from h: s (ROWS, gates, kRnnChannels), without the bias.
template <int ROWS, typename T>
void recurrent_part(const RnnArgs& a, const RnnBlock& b, const int (&seqs)[ROWS], float* s) {
  const int64_t gates = gates_of(a.cell), DH = a.DH, count = b.end - b.begin;
  const float* h[ROWS];
  for (int r = 0; r < ROWS; ++r) h[r] = h_before(a, seqs[r], b.t) + b.head * DH;
  for (int64_t gate = 0; gate < gates; ++gate) {
    const int64_t R_row = (b.head * gates + gate) * DH + b.begin;
    float* out[ROWS];
    for (int64_t r = 0; r < ROWS; ++r) out[r] = s + (r * gates + gate) * kRnnChannels;
    dot_rows(DH, h, static_cast<const T*>(a.R.data) + R_row * DH, DH, count, out);
  }
}

// The channels of one sequence. s: (gates, kRnnChannels)
template <RnnCell CELL>
HWY_NOINLINE void cell_part(const RnnArgs& a, const RnnBlock& b, int seq, const float* s) {
  constexpr int kGates = gates_of(CELL);
  const int64_t D = int64_t{a.H} * a.DH, row = a.seqs.begin[seq] + b.t;
  const int64_t first = b.head * a.DH + b.begin;
  const float* before = h_before(a, seq, b.t) + first;
  for_lanes(b.end - b.begin, [&](auto d, int64_t j) HWY_ATTR {
    Gates<decltype(d)> g;
    HWY_UNROLL(4)
    for (int gate = 0; gate < kGates; ++gate) {
      g.x[gate] = hn::LoadU(d, a.x + row * a.x_stride + gate * D + first + j);
      g.s[gate] = hn::LoadU(d, s + gate * kRnnChannels + j);
      if (a.b != nullptr) g.s[gate] = hn::Add(g.s[gate], hn::LoadU(d, a.b + gate * D + first + j));
    }
    const int64_t state = a.seqs.slot[seq] * D + first + j;
    const auto h = advance<CELL>(d, a, g, state, hn::LoadU(d, before + j));
    hn::StoreU(h, d, a.y + row * D + first + j);
  });
}

// A function a cell: one of all would keep compilers busy for minutes.
void cell_part_of(const RnnArgs& a, const RnnBlock& b, int seq, const float* s) {
  switch (a.cell) {
    case RnnCell::kElman:
      return cell_part<RnnCell::kElman>(a, b, seq, s);
    case RnnCell::kLstm:
      return cell_part<RnnCell::kLstm>(a, b, seq, s);
    case RnnCell::kGru:
      return cell_part<RnnCell::kGru>(a, b, seq, s);
    case RnnCell::kFlashGru:
      return cell_part<RnnCell::kFlashGru>(a, b, seq, s);
    case RnnCell::kSlstm:
      return cell_part<RnnCell::kSlstm>(a, b, seq, s);
  }
}

template <int ROWS, typename T>
void rows_of_block(const RnnArgs& a, const RnnBlock& b, const int (&seqs)[ROWS]) {
  float s[ROWS * 4 * kRnnChannels];
  recurrent_part<ROWS, T>(a, b, seqs, s);
  for (int r = 0; r < ROWS; ++r) {
    cell_part_of(a, b, seqs[r], s + int64_t{r} * gates_of(a.cell) * kRnnChannels);
  }
}

template <typename T>
void time_step(const RnnArgs& a, const RnnBlock& b) {
  int tile[kTileRows], count = 0;
  for (int seq = 0; seq < a.seqs.num_seqs; ++seq) {
    if (a.seqs.begin[seq] + b.t >= a.seqs.begin[seq + 1]) continue;
    tile[count++] = seq;
    if (count < kTileRows) continue;
    rows_of_block<kTileRows, T>(a, b, tile);
    count = 0;
  }
  for (int rest = 0; rest < count; ++rest) rows_of_block<1, T>(a, b, {tile[rest]});
}

void rnn_block(const RnnArgs& a, const RnnBlock& b) {
  if (a.R.dtype == DType::kBF16) {
    time_step<hwy::bfloat16_t>(a, b);
  } else {
    time_step<float>(a, b);
  }
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {
namespace {

HWY_EXPORT(rnn_block);

int64_t blocks_of(const RnnArgs& a) { return ceil_div(a.DH, kRnnChannels); }

// Blocks [begin, end) of all heads' channels at time step t.
void run_blocks(const RnnArgs& a, int t, int64_t begin, int64_t end) {
  for (int64_t item = begin; item < end; ++item) {
    const int64_t first = item % blocks_of(a) * kRnnChannels;
    HWY_DYNAMIC_DISPATCH(rnn_block)
    (a, {t, item / blocks_of(a), first, std::min<int64_t>(first + kRnnChannels, a.DH)});
  }
}

// Work of a time step, in the unit of kGrain.
int64_t cost_of_step(const RnnArgs& a) {
  return int64_t{a.seqs.num_seqs} * a.H * gates_of(a.cell) * a.DH * (a.DH + 10);
}

}  // namespace

void run(const RnnArgs& args, Stream& stream) {
  CHECK(args.R.dtype == DType::kBF16 || args.R.dtype == DType::kF32);
  if (args.seqs.num_seqs == 0) return;
  ThreadPool& pool = pool_of(stream);
  const int64_t blocks = blocks_of(args), D = int64_t{args.H} * args.DH;
  const int max_len = args.seqs.max_len;
  if (args.H >= pool.threads()) {  // heads know nothing of each other
    const int64_t cost = max_len * cost_of_step(args) / args.H;
    for_blocks(pool, args.H, cost, [&](int64_t begin, int64_t end) {
      for (int t = 0; t < max_len; ++t) run_blocks(args, t, begin * blocks, end * blocks);
    });
  } else {
    const int64_t cost = cost_of_step(args) / (args.H * blocks);
    for (int t = 0; t < max_len; ++t) {
      for_blocks(pool, args.H * blocks, cost,
                 [&](int64_t begin, int64_t end) { run_blocks(args, t, begin, end); });
    }
  }
  for (int seq = 0; seq < args.seqs.num_seqs; ++seq) {
    const float* last = args.y + (args.seqs.begin[seq + 1] - 1) * D;
    std::copy(last, last + D, args.h + args.seqs.slot[seq] * D);
  }
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
