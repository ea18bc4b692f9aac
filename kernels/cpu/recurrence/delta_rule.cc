#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/recurrence/open_state.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

// The step form throughout, by strips of columns: no column of a state depends on another, so that
// a strip goes through all rows of a sequence and stays in the second cache, 64 KiB of it with 256
// keys. A row then costs 4 operations a value of the state, where the chunk form's products cost 3
// and its triangles come on top.

#ifndef RECURVE_CPU_DELTA_RULE_ONCE
#define RECURVE_CPU_DELTA_RULE_ONCE
namespace recurve::cpu {

// Columns of one head of one sequence, through `rows` rows.
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
  StateData S;        // (DK, count)
  float* o;           // (rows, count)
  float* F;           // (DK) scratch: what stays of each row of S
  float* faded;       // (DK) scratch: the key times that
};

}  // namespace recurve::cpu
#endif  // RECURVE_CPU_DELTA_RULE_ONCE

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/recurrence/delta_rule.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/recurrence/stored_state-inl.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// One row of COUNT vectors of columns from `first` on. What is under the key is summed by even and
// odd keys, so that additions need not wait for each other. stored: S
template <int COUNT, class D, class T>
HWY_INLINE void delta_columns(D d, const DeltaStrip& x, int64_t row, int64_t first, T* stored) {
  const int64_t stride = x.S_stride;
  const float *k = x.k + row * x.k_stride, *q = x.q + row * x.q_stride;
  T* S = stored + first;
  hn::Vec<D> even[COUNT], odd[COUNT], sum[COUNT], value[COUNT], state[COUNT];
  each<COUNT>([&](int j) HWY_ATTR { even[j] = odd[j] = sum[j] = hn::Zero(d); });
  int64_t a = 0;
  for (; a + 2 <= x.DK; a += 2) {
    const auto one = hn::Set(d, x.faded[a]), other = hn::Set(d, x.faded[a + 1]);
    load_columns(d, S + a * stride, state);
    each<COUNT>([&](int j) HWY_ATTR { even[j] = hn::MulAdd(one, state[j], even[j]); });
    load_columns(d, S + (a + 1) * stride, state);
    each<COUNT>([&](int j) HWY_ATTR { odd[j] = hn::MulAdd(other, state[j], odd[j]); });
  }
  for (; a < x.DK; ++a) {
    const auto one = hn::Set(d, x.faded[a]);
    load_columns(d, S + a * stride, state);
    each<COUNT>([&](int j) HWY_ATTR { even[j] = hn::MulAdd(one, state[j], even[j]); });
  }
  const auto beta = hn::Set(d, x.beta[row * x.beta_stride]);
  load_as_columns<T>(d, x.v + row * x.v_stride + first, value);
  each<COUNT>([&](int j) HWY_ATTR {
    even[j] = hn::Mul(beta, hn::Sub(value[j], hn::Add(even[j], odd[j])));  // u
  });
  for (a = 0; a < x.DK; ++a) {
    const auto F = hn::Set(d, x.F[a]), key = hn::Set(d, k[a]), query = hn::Set(d, x.scale * q[a]);
    load_columns(d, S + a * stride, state);
    each<COUNT>([&](int j) HWY_ATTR {
      state[j] = hn::MulAdd(key, even[j], hn::Mul(F, state[j]));
      sum[j] = hn::MulAdd(query, state[j], sum[j]);
    });
    store_columns(d, state, S + a * stride);
  }
  store_as_columns<T>(d, sum, x.o + row * x.o_stride + first);
}

void fade(const DeltaStrip& x, int64_t row) {
  const float* k = x.k + row * x.k_stride;
  const float* g = x.g + row * x.g_stride;
  for_lanes(x.DK, [&](auto d, int64_t a) HWY_ATTR {
    auto F = hn::Set(d, 1.0f);
    if (x.decay == DeltaDecay::kToken) F = exp(d, hn::Set(d, g[0]));
    if (x.decay == DeltaDecay::kChannel) F = exp(d, hn::LoadU(d, g + a));
    hn::StoreU(F, d, x.F + a);
    hn::StoreU(hn::Mul(F, hn::LoadU(d, k + a)), d, x.faded + a);
  });
}

void delta_strip(const DeltaStrip& x) {
  constexpr int64_t kLanes = hn::MaxLanes(Floats());
  for (int64_t row = 0; row < x.rows; ++row) {
    fade(x, row);
    with_stored(x.S, [&](auto* S) HWY_ATTR {
      int64_t at = 0;
      for (; at + 4 * kLanes <= x.count; at += 4 * kLanes) {
        delta_columns<4>(Floats(), x, row, at, S);
      }
      for (; at + kLanes <= x.count; at += kLanes) delta_columns<1>(Floats(), x, row, at, S);
      for (; at < x.count; ++at) delta_columns<1>(OneFloat(), x, row, at, S);
    });
  }
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
  float* memory =
      scratch(static_cast<size_t>(2) * a.DK + OpenState::copy_floats(a.S, a.DK * count));
  OpenState S(a.S, {at, a.DK, count, a.DV}, last - first == 1, memory + 2 * a.DK);
  for (int row = first; row < last;) {
    const int rows = std::min(a.chunk, last - row);
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
      .F = memory,
      .faded = memory + a.DK});
    row += rows;
    S.end_chunk();
  }
}

}  // namespace

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
