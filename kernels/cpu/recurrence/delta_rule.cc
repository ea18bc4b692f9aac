#include <algorithm>
#include <type_traits>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/recurrence/open_state.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

// The step form throughout, by strips of columns: no column of a state depends on another, so that
// a strip goes through all rows of a sequence. A row then costs 4 operations a value of the state,
// where the chunk form's products cost 3 and its triangles come on top. Of a strip as many columns
// as stay in the first cache go through some rows at once; and what a row leaves of the state is
// multiplied with the next row's key while it is in a register, so that each row reads and writes
// the state once.

#ifndef RECURVE_CPU_DELTA_RULE_ONCE
#define RECURVE_CPU_DELTA_RULE_ONCE
namespace recurve::cpu {

// Rows that go through a strip at once.
inline constexpr int kDeltaRows = 32;
// Columns that go through them together, of any instruction set.
inline constexpr int kDeltaColumns = 32;

// Columns of one head of one sequence, through `rows` rows, at most kDeltaRows.
struct DeltaStrip {
  int rows;
  int DK;
  int count;  // columns, at most kChannels
  DeltaDecay decay;
  float scale;
  int64_t q_stride, k_stride, v_stride, g_stride, beta_stride, o_stride;  // from row to row
  int64_t S_stride;                                                       // from key to key
  const float* q;                                                         // (rows, DK)
  const float* k;                                                         // (rows, DK)
  const float* v;                                                         // (rows, count)
  const float* g;     // (rows) or, kChannel, (rows, DK); kNone: null
  const float* beta;  // (rows)
  StateData S;        // (DK, count); in BF16 for one row alone
  float* o;           // (rows, count)
  float* factors;     // (rows, 3, DK) scratch: see below
  float* copy;        // (DK, kDeltaColumns) scratch

  // Floats of both.
  static size_t scratch_floats(int DK) {
    return (size_t{3} * kDeltaRows + kDeltaColumns) * static_cast<size_t>(DK);
  }

  float* remains(int64_t row) const { return factors + row * 3 * DK; }       // of each row of S
  float* faded(int64_t row) const { return factors + (row * 3 + 1) * DK; }   // the key times that
  float* scaled(int64_t row) const { return factors + (row * 3 + 2) * DK; }  // the query
};

}  // namespace recurve::cpu
#endif  // RECURVE_CPU_DELTA_RULE_ONCE

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/recurrence/delta_rule.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/linear/dot_tile-inl.h"
#include "kernels/cpu/recurrence/stored_state-inl.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// What the state of COUNT vectors of columns has under a row's key, summed by even and odd keys, so
// that additions need not wait for each other.
template <int COUNT, class D>
HWY_INLINE void store_sums(D d, const hn::Vec<D> (&even)[COUNT], const hn::Vec<D> (&odd)[COUNT],
                           float* under) {
  each<COUNT>([&](int j) HWY_ATTR {
    hn::StoreU(hn::Add(even[j], odd[j]), d, under + j * hn::MaxLanes(d));
  });
}

template <int COUNT, class D, class T>
HWY_INLINE void read_key(D d, const DeltaStrip& x, const T* S, float* under) {
  const float* faded = x.faded(0);
  hn::Vec<D> even[COUNT], odd[COUNT], state[COUNT];
  each<COUNT>([&](int j) HWY_ATTR { even[j] = odd[j] = hn::Zero(d); });
  int64_t a = 0;
  for (; a + 2 <= x.DK; a += 2, S += 2 * x.S_stride) {
    const auto one = hn::Set(d, faded[a]), other = hn::Set(d, faded[a + 1]);
    load_columns(d, S, state);
    each<COUNT>([&](int j) HWY_ATTR { even[j] = hn::MulAdd(one, state[j], even[j]); });
    load_columns(d, S + x.S_stride, state);
    each<COUNT>([&](int j) HWY_ATTR { odd[j] = hn::MulAdd(other, state[j], odd[j]); });
  }
  if (a < x.DK) {
    const auto one = hn::Set(d, faded[a]);
    load_columns(d, S, state);
    each<COUNT>([&](int j) HWY_ATTR { even[j] = hn::MulAdd(one, state[j], even[j]); });
  }
  store_sums(d, even, odd, under);
}

struct DeltaFactors {
  const float *remains, *key, *query, *faded;  // (DK), the last of the next row
};

// One key of a row: its row of S, what the query reads there and, with NEXT, what the next key
// does.
template <bool NEXT, int COUNT, class D, class T>
HWY_INLINE void delta_key(D d, const DeltaFactors& of, int64_t a, const hn::Vec<D> (&u)[COUNT],
                          hn::Vec<D> (&sum)[COUNT], hn::Vec<D> (&next)[COUNT], T* S) {
  auto remains = hn::Set(d, of.remains[a]), key = hn::Set(d, of.key[a]);
  auto query = hn::Set(d, of.query[a]), faded = hn::Set(d, of.faded[a]);
  if constexpr (COUNT > 1) {
    keep_in_register(remains);
    keep_in_register(key);
    keep_in_register(query);
    if constexpr (NEXT) keep_in_register(faded);
  }
  hn::Vec<D> state[COUNT];
  load_columns(d, S, state);
  each<COUNT>([&](int j) HWY_ATTR {
    state[j] = hn::MulAdd(key, u[j], hn::Mul(remains, state[j]));
    sum[j] = hn::MulAdd(query, state[j], sum[j]);
    if constexpr (NEXT) next[j] = hn::MulAdd(faded, state[j], next[j]);
  });
  store_columns(d, state, S);
}

// One row of COUNT vectors of columns from `first` on, where `under` is under its key; with NEXT,
// then what is under the next row's. S: begins at `first`
template <bool NEXT, int COUNT, class D, class T>
HWY_INLINE void delta_row(D d, const DeltaStrip& x, int64_t row, int64_t first, T* S,
                          float* under) {
  const auto beta = hn::Set(d, x.beta[row * x.beta_stride]);
  hn::Vec<D> u[COUNT], sum[COUNT], even[COUNT], odd[COUNT];
  load_as_columns<T>(d, x.v + row * x.v_stride + first, u);
  each<COUNT>([&](int j) HWY_ATTR {
    u[j] = hn::Mul(beta, hn::Sub(u[j], hn::LoadU(d, under + j * hn::MaxLanes(d))));
    sum[j] = even[j] = odd[j] = hn::Zero(d);
  });
  const DeltaFactors of{x.remains(row), x.k + row * x.k_stride, x.scaled(row),
                        x.faded(row + int{NEXT})};
  int64_t a = 0;
  for (; a + 2 <= x.DK; a += 2, S += 2 * x.S_stride) {
    delta_key<NEXT, COUNT>(d, of, a, u, sum, even, S);
    delta_key<NEXT, COUNT>(d, of, a + 1, u, sum, odd, S + x.S_stride);
  }
  if (a < x.DK) delta_key<NEXT, COUNT>(d, of, a, u, sum, even, S);
  if constexpr (NEXT) store_sums(d, even, odd, under);
  store_as_columns<T>(d, sum, x.o + row * x.o_stride + first);
}

// All rows of COUNT vectors of columns from `first` on, which begin at S.
template <int COUNT, class D, class T>
HWY_INLINE void delta_rows(D d, const DeltaStrip& x, int64_t first, T* S) {
  float under[COUNT * hn::MaxLanes(d)];
  read_key<COUNT>(d, x, S, under);
  const int last = x.rows - 1;
  if constexpr (std::is_same_v<T, float>) {  // what the next row finds is not rounded on the way
    for (int row = 0; row < last; ++row) delta_row<true, COUNT>(d, x, row, first, S, under);
  }
  delta_row<false, COUNT>(d, x, last, first, S, under);
}

// The same, in a copy where they are read more than once: as far apart as in the state, few of
// them fit in the first cache at once.
template <int COUNT, class D, class T>
void delta_columns(D d, const DeltaStrip& x, int64_t first, T* stored) {
  if constexpr (std::is_same_v<T, float>) {
    if (x.rows > 1) {
      constexpr int64_t kColumns = COUNT * hn::MaxLanes(d);
      hn::Vec<D> state[COUNT];
      for (int64_t a = 0; a < x.DK; ++a) {
        load_columns(d, stored + a * x.S_stride + first, state);
        store_columns(d, state, x.copy + a * kColumns);
      }
      DeltaStrip copied = x;
      copied.S_stride = kColumns;
      delta_rows<COUNT>(d, copied, first, x.copy);
      for (int64_t a = 0; a < x.DK; ++a) {
        load_columns(d, x.copy + a * kColumns, state);
        store_columns(d, state, stored + a * x.S_stride + first);
      }
      return;
    }
  }
  delta_rows<COUNT>(d, x, first, stored + first);
}

void find_factors(const DeltaStrip& x, int64_t row) {
  const float *k = x.k + row * x.k_stride, *q = x.q + row * x.q_stride;
  const float* g = x.g + row * x.g_stride;
  float token = 1;
  if (x.decay == DeltaDecay::kToken) {
    const Floats d;
    token = hn::GetLane(exp(d, hn::Set(d, g[0])));
  }
  for_lanes(x.DK, [&](auto d, int64_t a) HWY_ATTR {
    auto F = hn::Set(d, token);
    if (x.decay == DeltaDecay::kChannel) F = exp(d, hn::LoadU(d, g + a));
    hn::StoreU(F, d, x.remains(row) + a);
    hn::StoreU(hn::Mul(F, hn::LoadU(d, k + a)), d, x.faded(row) + a);
    hn::StoreU(hn::Mul(hn::Set(d, x.scale), hn::LoadU(d, q + a)), d, x.scaled(row) + a);
  });
}

void delta_strip(const DeltaStrip& x) {
  constexpr int64_t kLanes = hn::MaxLanes(Floats());
  static_assert(2 * kLanes <= kDeltaColumns);
  for (int64_t row = 0; row < x.rows; ++row) find_factors(x, row);
  with_stored(x.S, [&](auto* S) HWY_ATTR {
    int64_t at = 0;
    if (x.rows == 1) {  // the state comes from memory, in its order
      for (; at + 4 * kLanes <= x.count; at += 4 * kLanes) delta_columns<4>(Floats(), x, at, S);
    }
    for (; at + 2 * kLanes <= x.count; at += 2 * kLanes) delta_columns<2>(Floats(), x, at, S);
    for (; at + kLanes <= x.count; at += kLanes) delta_columns<1>(Floats(), x, at, S);
    for (; at < x.count; ++at) delta_columns<1>(OneFloat(), x, at, S);
  });
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {
namespace {

HWY_EXPORT(delta_strip);

// All rows of columns [begin, end) of one head of one sequence.
void run_strip(const DeltaRuleArgs& a, int64_t seq, int64_t head, int64_t begin, int64_t end) {
  const int first = a.seqs.begin[seq], last = a.seqs.begin[seq + 1];
  const int64_t key = head / (a.H / a.HK) * a.DK, count = end - begin;
  const int64_t g_at = a.decay == DeltaDecay::kChannel ? head * a.DK : head;
  const int64_t at = (int64_t{a.seqs.slot[seq]} * a.H + head) * a.DK * a.DV + begin;
  const size_t floats = DeltaStrip::scratch_floats(a.DK);
  float* memory = scratch(floats + OpenState::copy_floats(a.S, a.DK * count));
  OpenState S(a.S, {at, a.DK, count, a.DV}, last - first == 1, memory + floats);
  for (int row = first; row < last;) {
    const int chunk_end = std::min(row + a.chunk - (row - first) % a.chunk, last);
    const int rows = std::min(kDeltaRows, chunk_end - row);
    HWY_DYNAMIC_DISPATCH(delta_strip)
    ({.rows = rows,
      .DK = a.DK,
      .count = static_cast<int>(count),
      .decay = a.decay,
      .scale = a.scale,
      .q_stride = a.q_stride,
      .k_stride = a.k_stride,
      .v_stride = a.v_stride,
      .g_stride = a.decay == DeltaDecay::kNone ? 0 : a.g_stride,
      .beta_stride = a.beta_stride,
      .o_stride = int64_t{a.H} * a.DV,
      .S_stride = S.stride(),
      .q = a.q + int64_t{row} * a.q_stride + key,
      .k = a.k + int64_t{row} * a.k_stride + key,
      .v = a.v + int64_t{row} * a.v_stride + head * a.DV + begin,
      .g = a.decay == DeltaDecay::kNone ? nullptr : a.g + int64_t{row} * a.g_stride + g_at,
      .beta = a.beta + int64_t{row} * a.beta_stride + head,
      .S = S.data(),
      .o = a.o + (int64_t{row} * a.H + head) * a.DV + begin,
      .factors = memory,
      .copy = memory + int64_t{3} * kDeltaRows * a.DK});
    row += rows;
    if (row == chunk_end) S.end_chunk();
  }
}

}  // namespace

ScratchBytes scratch_of(const DeltaRuleArgs& a) {
  const size_t copy = OpenState::copy_floats(a.S, a.DK * std::min<int64_t>(kChannels, a.DV));
  return {.thread = (DeltaStrip::scratch_floats(a.DK) + copy) * sizeof(float)};
}

// One thread a strip of columns of a head of a sequence, from its first row to its last.
void run(const DeltaRuleArgs& args, Stream& stream) {
  for_channels(
      pool_of(stream), args.seqs, int64_t{args.H} * ceil_div(args.DV, kChannels) * kChannels,
      4 * int64_t{args.DK}, [&](int64_t seq, int64_t begin, int64_t) {
        const int64_t strips = ceil_div(args.DV, kChannels), strip = begin / kChannels;
        const int64_t first = strip % strips * kChannels;
        run_strip(args, seq, strip / strips, first, std::min<int64_t>(first + kChannels, args.DV));
      });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
