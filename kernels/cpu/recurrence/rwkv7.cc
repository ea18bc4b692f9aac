#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/recurrence/open_state.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

// The step form throughout: a head's state of 64 x 64 stays in the first cache from row to row, and
// a row costs 5 multiplications a value of it, fewer than the chunk form's products and its
// triangle; next to the weights' products it is a few percent of a prompt.

#ifndef RECURVE_CPU_RWKV7_ONCE
#define RECURVE_CPU_RWKV7_ONCE
namespace recurve::cpu {

// One row of one head.
struct Rwkv7Row {
  int N;
  bool alone;          // of its sequence: S comes from memory
  const float* r;      // (N)
  const float* lw;     // (N)
  const float* k;      // (N)
  const float* v;      // (N)
  const float* kk;     // (N)
  const float* alpha;  // (N)
  StateData S;         // (N, N)
  float* o;            // (N)
  float* decay;        // (N) scratch
  float* b;            // (N) scratch
};

}  // namespace recurve::cpu
#endif  // RECURVE_CPU_RWKV7_ONCE

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/recurrence/rwkv7.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/recurrence/stored_state-inl.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// COUNT vectors of columns from `first` on. What is replaced is summed by even and odd keys, so
// that additions need not wait for each other. stored: S
template <int COUNT, class D, class T>
HWY_INLINE void step_columns(D d, const Rwkv7Row& x, int64_t first, T* stored) {
  const int64_t N = x.N;
  T* S = stored + first;
  hn::Vec<D> even[COUNT], odd[COUNT], v[COUNT], o[COUNT], state[COUNT];
  each<COUNT>([&](int j) HWY_ATTR { even[j] = odd[j] = o[j] = hn::Zero(d); });
  load_as_columns<T>(d, x.v + first, v);
  int64_t c = 0;
  for (; c + 2 <= N; c += 2) {
    const auto one = hn::Set(d, x.kk[c]), other = hn::Set(d, x.kk[c + 1]);
    if (x.alone) {
      each<COUNT>([&](int j) HWY_ATTR {
        fetch_state(d, stored + c * N, first + j * hn::MaxLanes(d));
        fetch_state(d, stored + (c + 1) * N, first + j * hn::MaxLanes(d));
      });
    }
    load_columns(d, S + c * N, state);
    each<COUNT>([&](int j) HWY_ATTR { even[j] = hn::NegMulAdd(one, state[j], even[j]); });
    load_columns(d, S + (c + 1) * N, state);
    each<COUNT>([&](int j) HWY_ATTR { odd[j] = hn::NegMulAdd(other, state[j], odd[j]); });
  }
  for (; c < N; ++c) {
    load_columns(d, S + c * N, state);
    const auto one = hn::Set(d, x.kk[c]);
    each<COUNT>([&](int j) HWY_ATTR { even[j] = hn::NegMulAdd(one, state[j], even[j]); });
  }
  each<COUNT>([&](int j) HWY_ATTR { even[j] = hn::Add(even[j], odd[j]); });
  for (c = 0; c < N; ++c) {
    const auto decay = hn::Set(d, x.decay[c]), b = hn::Set(d, x.b[c]);
    const auto k = hn::Set(d, x.k[c]), r = hn::Set(d, x.r[c]);
    load_columns(d, S + c * N, state);
    each<COUNT>([&](int j) HWY_ATTR {
      const auto added = hn::MulAdd(k, v[j], hn::Mul(b, even[j]));
      state[j] = hn::MulAdd(decay, state[j], added);
      o[j] = hn::MulAdd(r, state[j], o[j]);
    });
    store_columns(d, state, S + c * N);
  }
  store_as_columns<T>(d, o, x.o + first);
}

void rwkv7_step(const Rwkv7Row& x) {
  constexpr int64_t kLanes = hn::MaxLanes(Floats());
  for_lanes(x.N, [&](auto d, int64_t c) HWY_ATTR {
    hn::StoreU(exp(d, hn::LoadU(d, x.lw + c)), d, x.decay + c);
    hn::StoreU(hn::Mul(hn::LoadU(d, x.kk + c), hn::LoadU(d, x.alpha + c)), d, x.b + c);
  });
  with_stored(x.S, [&](auto* S) HWY_ATTR {
    int64_t at = 0;
    for (; at + 4 * kLanes <= x.N; at += 4 * kLanes) step_columns<4>(Floats(), x, at, S);
    for (; at + kLanes <= x.N; at += kLanes) step_columns<1>(Floats(), x, at, S);
    for (; at < x.N; ++at) step_columns<1>(OneFloat(), x, at, S);
  });
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {
namespace {

HWY_EXPORT(rwkv7_step);

size_t head_floats(const Rwkv7Args& a) {
  return 2 * static_cast<size_t>(a.N) + OpenState::copy_floats(a.S, int64_t{a.N} * a.N);
}

// All rows of one head of one sequence. memory: (head_floats)
void run_head(const Rwkv7Args& a, int64_t seq, int64_t head, float* memory) {
  const int64_t N = a.N, matrix = N * N;
  const int first = a.seqs.begin[seq], end = a.seqs.begin[seq + 1];
  const int64_t at_state = (int64_t{a.seqs.slot[seq]} * a.H + head) * matrix;
  OpenState S(a.S, StatePart::whole(at_state, matrix), end - first == 1, memory + 2 * N);
  for (int row = first; row < end; ++row) {
    const int64_t at = int64_t{row} * a.stride + head * N;
    HWY_DYNAMIC_DISPATCH(rwkv7_step)
    ({.N = a.N,
      .alone = end - first == 1,
      .r = a.r + at,
      .lw = a.lw + at,
      .k = a.k + at,
      .v = a.v + at,
      .kk = a.kk + at,
      .alpha = a.alpha + at,
      .S = S.data(),
      .o = a.o + (int64_t{row} * a.H + head) * N,
      .decay = memory,
      .b = memory + N});
    if (row + 1 == end || (row + 1 - first) % a.chunk == 0) S.end_chunk();
  }
}

}  // namespace

ScratchBytes scratch_of(const Rwkv7Args& args) {
  return {.thread = head_floats(args) * sizeof(float)};
}

// One thread a pair of sequence and head, from its first row to its last.
void run(const Rwkv7Args& args, Stream& stream) {
  const int64_t pairs = int64_t{args.seqs.num_seqs} * args.H;
  if (pairs == 0) return;
  const int64_t rows = ceil_div(args.seqs.rows, args.seqs.num_seqs);
  const int64_t matrix = int64_t{args.N} * args.N;
  for_blocks(pool_of(stream), pairs, 4 * rows * matrix, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) {
      run_head(args, pair / args.H, pair % args.H, scratch(head_floats(args)));
    }
  });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
