// The step form of states that are written once in several rows: kernels/ops/held_rows.h.
#include <algorithm>

#include "kernels/check.h"
#include "kernels/cuda/sm80/copies.cuh"
#include "kernels/cuda/sm80/matrix/ssd_chunk.h"
#include "kernels/cuda/sm80/matrix/ssd_step.cuh"
#include "kernels/cuda/sm80/tile.cuh"

namespace recurve::cuda::sm80 {
namespace {

using namespace ssd;

// Rows that the base has not taken in: adjacent lanes have one, a share of the warp's channels
// each.
constexpr int kRowLanes = kWarpSize / kMostHeldEvery;
template <typename T>
constexpr int kShare = Shape<T>::kChannels / kRowLanes;

// For a lane, whose row is j: those that lie next to the state, `count` of them.
template <typename T, bool kWhole>
struct RowsHeld {
  const Lane<T, kWhole>& s;
  int64_t slot;
  int count;
  int j = threadIdx.x % kWarpSize / kRowLanes;
  int c0 = threadIdx.x % kRowLanes * kShare<T>;  // the lane's first channel of the warp's

  __device__ int64_t row_of(int row) const { return slot * (s.a.held.every - 1) + row; }
  __device__ float* a() const {
    return s.a.held_a + (slot * s.a.H + s.head) * (s.a.held.every - 1);
  }
  __device__ float* u(int row) const {
    return s.a.held_u + (row_of(row) * s.a.H + s.head) * s.a.P + s.p0;
  }
  // The lane's of its states of a slab.
  __device__ float* B(int row, int base) const {
    return s.a.held_B + (row_of(row) * s.a.G + s.head / (s.a.H / s.a.G)) * s.a.N + base + s.n;
  }
  // Of all rows the lane's states of a slab, and newest behind them; then zeros.
  __device__ void load_B(int base, const float4& newest, float4 (&rows)[kMostHeldEvery]) const {
#pragma unroll
    for (int row = 0; row < kMostHeldEvery; ++row) {
      rows[row] = make_float4(0, 0, 0, 0);
      if (row < count) rows[row] = s.load_row(B(row, base), base);
    }
#pragma unroll
    for (int row = 0; row < kMostHeldEvery; ++row) {
      if (row == count) rows[row] = newest;
    }
  }
  // Whether this warp leaves B of its group.
  __device__ bool leaves_B() const { return s.head % (s.a.H / s.a.G) == 0 && s.p0 == 0; }
  __device__ float decay() const { return j < count ? a()[j] : 0; }
  __device__ void load_u(float (&values)[kShare<T>]) const {
#pragma unroll
    for (int i = 0; i < kShare<T>; ++i) {
      values[i] = j < count && c0 + i < s.channels ? u(j)[c0 + i] : 0;
    }
  }
};

// Of the lane's row j, exp(S_tj), t being the last row; and for all, exp(s_t). a: the lane's row's
// logarithm of its decay, 0 behind the last.
struct Decays {
  float row, base;
};
__device__ Decays decays_of(float a, int j, int last) {
  float S = 0;
#pragma unroll
  for (int i = kMostHeldEvery - 1; i > 0; --i) {
    const float next = __shfl_sync(kAll, a, i * kRowLanes);
    if (j < i && i <= last) S += next;
  }
  const float first = __shfl_sync(kAll, S, 0) + __shfl_sync(kAll, a, 0);
  return {expf(S), expf(first)};
}

__device__ float4 times(float factor, const float4& x) {
  return make_float4(__fmul_rn(factor, x.x), __fmul_rn(factor, x.y), __fmul_rn(factor, x.z),
                     __fmul_rn(factor, x.w));
}
__device__ float4 plus(const float4& sum, float factor, const float4& x) {
  return make_float4(__fmaf_rn(factor, x.x, sum.x), __fmaf_rn(factor, x.y, sum.y),
                     __fmaf_rn(factor, x.z, sum.z), __fmaf_rn(factor, x.w, sum.w));
}

// What a step of a warp's channels needs but their states.
template <typename T>
struct HeldStep {
  Row in;
  float own, log_decay;  // dt x of the lane's channel, and of the row
  Decays decays;
  float u[kShare<T>];  // of the lane's row and channels, times exp(S)
  float from_rows;     // what the rows add to the sum of the lane's channel
};

// count of `rows_held`: of the rows before this one.
template <typename T, bool kWhole>
__device__ HeldStep<T> held_step(const RowsHeld<T, kWhole>& rows_held, int64_t row) {
  constexpr int kLanes = Shape<T>::kLanes;
  const auto& s = rows_held.s;
  const SsdArgs& a = s.a;
  const int last = rows_held.count, lane = threadIdx.x % kWarpSize;
  const bool newest = rows_held.j == last;
  HeldStep<T> step;
  // All that is read is on its way before any of it is used.
  const SsdInputs inputs = ssd_inputs_at(a, row, s.head);
  const float before = rows_held.decay();
  step.in = s.row_at(row, 0);
  rows_held.load_u(step.u);
  float dots[kMostHeldEvery] = {};
  const auto add_dots = [&](const Row& of_slab, int base) {
    float4 B[kMostHeldEvery];
    rows_held.load_B(base, of_slab.B, B);
#pragma unroll
    for (int j = 0; j < kMostHeldEvery; ++j) dots[j] = dot4(of_slab.C, B[j], dots[j]);
  };
  add_dots(step.in, 0);
  for (int base = kSlab; !kWhole && base < a.N; base += kSlab) add_dots(s.row_at(row, base), base);

  const SsdStep t = ssd_step_of(a, inputs);
  step.log_decay = t.log_decay;
  step.own = __fmul_rn(t.dt, step.in.x);
#pragma unroll
  for (int i = 0; i < kShare<T>; ++i) {
    const float mine = __shfl_sync(kAll, step.own, min(rows_held.c0 + i, s.channels - 1) * kLanes);
    if (newest && rows_held.c0 + i < s.channels) step.u[i] = mine;
  }
  step.decays = decays_of(newest ? t.log_decay : before, rows_held.j, last);
  const float weight = __fmul_rn(sums_of_channels(dots), step.decays.row);
  // In one order for all types of states.
  step.from_rows = 0;
#pragma unroll
  for (int i = 0; i < kShare<T>; ++i) {
    float sum = rows_held.j <= last ? __fmul_rn(weight, step.u[i]) : 0;
#pragma unroll
    for (int lanes = kRowLanes; lanes < kWarpSize; lanes *= 2) {
      sum += __shfl_xor_sync(kAll, sum, lanes);
    }
    const float of_channel = __shfl_sync(kAll, sum, lane / kLanes / kShare<T>);
    if (lane / kLanes % kShare<T> == i) step.from_rows = of_channel;
  }
#pragma unroll
  for (int i = 0; i < kShare<T>; ++i) step.u[i] = __fmul_rn(step.decays.row, step.u[i]);
  return step;
}

// y: of each channel, what the lane's states of a slab of the base give. states(c): those.
template <typename T, typename States>
__device__ void add_base(const float4& C, float decay, const States& states,
                         float (&y)[Shape<T>::kChannels]) {
  const float4 decayed = times(decay, C);
#pragma unroll
  for (int c = 0; c < Shape<T>::kChannels; ++c) y[c] = dot4(decayed, widened(states(c)), y[c]);
}

// Writes a slab of the base, with rows 0 to `last`. u: of the lane's row and channels, times
// exp(S). B: of all rows, the lane's. states(c): what is there.
template <typename T, bool kWhole, bool kVector, typename States>
__device__ void write_base(const Lane<T, kWhole>& s, T* state, int base, int last, float decay,
                           const float (&u)[kShare<T>], const float4 (&B)[kMostHeldEvery],
                           const States& states) {
#pragma unroll 1  // few registers
  for (int share = 0; share < kRowLanes; ++share) {
#pragma unroll
    for (int i = 0; i < kShare<T>; ++i) {
      const int c = share * kShare<T> + i;
      float4 h = times(decay, widened(states(c)));
#pragma unroll
      for (int row = 0; row < kMostHeldEvery; ++row) {
        const float weight = __shfl_sync(kAll, u[i], row * kRowLanes + share);
        if (row <= last) h = plus(h, weight, B[row]);
      }
      store_four<kVector>(state + static_cast<int64_t>(c) * s.a.N + base, four_of<T>(h),
                          s.states(c, base));
    }
  }
}

// Leaves the row next to the base, but for its B.
template <typename T, bool kWhole>
__device__ void leave_row(const RowsHeld<T, kWhole>& rows_held, const HeldStep<T>& step) {
  const int lane = threadIdx.x % kWarpSize, channel = lane / Shape<T>::kLanes;
  const bool first = lane % Shape<T>::kLanes == 0 && channel < rows_held.s.channels;
  if (first) rows_held.u(rows_held.count)[channel] = step.own;
  if (rows_held.s.p0 == 0 && lane == 0) rows_held.a()[rows_held.count] = step.log_decay;
}

// Row `t` of the step form of a sequence, and how many rows lie next to its state by then. row: -1
// where there is none.
struct StepRow {
  int row, held;
};
__device__ StepRow step_row(const SsdArgs& a, int sequence, int t) {
  const StepRows rows = step_rows(a.seqs, a.chunk, sequence);
  if (rows.first + t >= rows.end) return {-1, 0};
  // The rows before a chunk of several have been taken in.
  const bool all = a.seqs.max_len == 1 || rows.first == a.seqs.begin[sequence];
  return {rows.first + t, ((all ? a.held.before[sequence] : 0) + t) % a.held.every};
}

template <typename T, bool kWhole>
__device__ T* states_of(const Lane<T, kWhole>& s, int64_t slot) {
  return values_of<T>(s.a.h) + ((slot * s.a.H + s.head) * s.a.P + s.p0) * s.a.N + s.n;
}

// A warp: some channels of a head of a sequence. Of any sizes.
template <typename T, bool kVector>
__global__ void __launch_bounds__(kThreads) ssd_held_kernel(SsdArgs a, int tiles, int t) {
  constexpr int kChannels = Shape<T>::kChannels;
  let_next_start();
  const int tile = blockIdx.x % tiles, head = blockIdx.x / tiles % a.H;
  const int sequence = blockIdx.x / tiles / a.H, lane = threadIdx.x % kWarpSize;
  const int p0 = (tile * kThreads + static_cast<int>(threadIdx.x)) / kWarpSize * kChannels;
  wait_for_previous();
  if (p0 >= a.P) return;
  const StepRow at = step_row(a, sequence, t);
  if (at.row < 0) return;
  const Lane<T, false> s{a, head, p0, 4 * lane, min(kChannels, a.P - p0)};
  const Output output(s);
  const int64_t slot = a.seqs.slot[sequence];
  T* const state = states_of(s, slot);
  const RowsHeld<T, false> rows_held{s, slot, at.held};
  const HeldStep<T> step = held_step(rows_held, at.row);
  const bool writes = at.held + 1 == a.held.every;
  float y[kChannels] = {};
  for (int base = 0; base < a.N; base += kSlab) {
    const Row of_slab = base > 0 ? s.row_at(at.row, base) : step.in;
    const auto states = [&](int c) {
      return load_four<kVector>(state + static_cast<int64_t>(c) * a.N + base, s.states(c, base));
    };
    add_base<T>(of_slab.C, step.decays.base, states, y);
    if (writes) {
      float4 B[kMostHeldEvery];
      rows_held.load_B(base, of_slab.B, B);
      write_base<T, false, kVector>(s, state, base, at.held, step.decays.base, step.u, B, states);
    } else if (rows_held.leaves_B()) {
      store4<false>(rows_held.B(at.held, base), of_slab.B, s.states(0, base));
    }
  }
  if (!writes) leave_row(rows_held, step);
  output.template put<Shape<T>::kLanes>(a, at.row, sums_of_channels(y) + step.from_rows, step.in.x,
                                        step.in.z);
}

// The same of heads whose warps have whole states: warps take one after the other, and the next
// one's states are on their way to shared memory meanwhile. A lane brings what it reads itself.
constexpr int kWarps = kThreads / kWarpSize, kStages = 2, kStageBytes = 4096;
constexpr int kRingBlocks = 5;  // of a multiprocessor

template <typename T>
__global__ void __launch_bounds__(kThreads, kRingBlocks)
    ssd_held_ring_kernel(SsdArgs a, int groups, int t) {
  constexpr int kChannels = Shape<T>::kChannels, kLaneBytes = 4 * sizeof(T);
  static_assert(kChannels * kWarpSize * kLaneBytes == kStageBytes);
  extern __shared__ uint4 ring[];
  let_next_start();
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  char* const mine =
      reinterpret_cast<char*>(ring) + warp * kStages * kStageBytes + lane * kLaneBytes;
  const int units = a.seqs.num_seqs * a.H * groups, all = static_cast<int>(gridDim.x) * kWarps;
  const auto sequence_of = [&](int unit) { return unit / groups / a.H; };
  const auto lane_of = [&](int unit) {
    return Lane<T, true>{a, unit / groups % a.H, unit % groups * kChannels, 4 * lane, kChannels};
  };
  const auto bring = [&](int unit, int stage) {
    if (unit < units && step_row(a, sequence_of(unit), t).row >= 0) {
      const T* const from = states_of(lane_of(unit), a.seqs.slot[sequence_of(unit)]);
      const uint32_t to = shared_address(mine + stage * kStageBytes);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        copy_bytes<kLaneBytes>(to + c * kWarpSize * kLaneBytes, from + c * kSlab);
      }
    }
    commit_copies();
  };
  int unit = static_cast<int>(blockIdx.x) * kWarps + warp, stage = 0;
  if (unit < units) {
    fetch_states(lane_of(unit), states_of(lane_of(unit), a.seqs.slot[sequence_of(unit)]));
  }
  wait_for_previous();
  bring(unit, stage);
  for (; unit < units; unit += all, stage = 1 - stage) {
    bring(unit + all, 1 - stage);
    const int sequence = sequence_of(unit);
    const StepRow at = step_row(a, sequence, t);
    if (at.row < 0) continue;
    const Lane<T, true> s = lane_of(unit);
    const Output output(s);
    const int64_t slot = a.seqs.slot[sequence];
    const RowsHeld<T, true> rows_held{s, slot, at.held};
    const HeldStep<T> step = held_step(rows_held, at.row);
    wait_for_all_but<1>();
    const char* const held = mine + stage * kStageBytes;
    const auto states = [&](int c) {
      return *reinterpret_cast<const Four<T>*>(held + c * kWarpSize * kLaneBytes);
    };
    float y[kChannels] = {};
    add_base<T>(step.in.C, step.decays.base, states, y);
    if (at.held + 1 == a.held.every) {
      float4 B[kMostHeldEvery];
      rows_held.load_B(0, step.in.B, B);
      write_base<T, true, true>(s, states_of(s, slot), 0, at.held, step.decays.base, step.u, B,
                                states);
    } else {
      if (rows_held.leaves_B()) store4<true>(rows_held.B(at.held, 0), step.in.B, 4);
      leave_row(rows_held, step);
    }
    output.template put<Shape<T>::kLanes>(a, at.row, sums_of_channels(y) + step.from_rows,
                                          step.in.x, step.in.z);
  }
}

// Sequences whose first chunk has two rows or more take in the rows next to their states. Blocks as
// of ssd_held_kernel().
template <typename T, bool kWhole, bool kVector>
__global__ void __launch_bounds__(kThreads) take_in_kernel(SsdArgs a, int tiles) {
  constexpr int kChannels = Shape<T>::kChannels;
  let_next_start();
  const int tile = blockIdx.x % tiles, head = blockIdx.x / tiles % a.H;
  const int sequence = blockIdx.x / tiles / a.H, lane = threadIdx.x % kWarpSize;
  const int p0 = (tile * kThreads + static_cast<int>(threadIdx.x)) / kWarpSize * kChannels;
  wait_for_previous();
  if (p0 >= a.P || a.seqs.begin[sequence + 1] - a.seqs.begin[sequence] == 1) return;
  const int count = min(a.held.before[sequence], a.held.every - 1);
  if (count == 0) return;
  const Lane<T, kWhole> s{a, head, p0, 4 * lane, min(kChannels, a.P - p0)};
  const int64_t slot = a.seqs.slot[sequence];
  T* const state = states_of(s, slot);
  const RowsHeld<T, kWhole> rows_held{s, slot, count};
  float u[kShare<T>];
  rows_held.load_u(u);
  const Decays decays = decays_of(rows_held.decay(), rows_held.j, count - 1);
#pragma unroll
  for (int i = 0; i < kShare<T>; ++i) u[i] = __fmul_rn(decays.row, u[i]);
  for (int base = 0; base < a.N; base += kSlab) {
    float4 B[kMostHeldEvery];
    rows_held.load_B(base, make_float4(0, 0, 0, 0), B);
    const auto states = [&](int c) {
      return load_four<kVector>(state + static_cast<int64_t>(c) * a.N + base, s.states(c, base));
    };
    write_base<T, kWhole, kVector>(s, state, base, count - 1, decays.base, u, B, states);
  }
}

template <typename T>
void launch_held_steps(const SsdArgs& args, Stream& stream) {
  Launch launch = launch_of<T>(args);
  auto kernel = launch.vector ? ssd_held_kernel<T, true> : ssd_held_kernel<T, false>;
  if (launch.whole) {
    kernel = ssd_held_ring_kernel<T>;
    launch.tiles = args.P / Shape<T>::kChannels;
    const int units = args.seqs.num_seqs * args.H * launch.tiles;
    const int most = kRingBlocks * static_cast<CudaStream&>(stream).multiprocessors();
    launch.shape = {.grid = static_cast<unsigned>(std::min(ceil_div(units, kWarps), most)),
                    .threads = kThreads,
                    .shared = size_t{kWarps} * kStages * kStageBytes};
  }
  const int steps = args.chunk == 1 ? args.seqs.max_len : 1;
  for (int t = 0; t < steps; ++t) {
    launch_early(stream, "ssd", kernel, launch.shape, args, launch.tiles, t);
  }
}

template <typename T>
void launch_take_in(const SsdArgs& args, Stream& stream) {
  const Launch launch = launch_of<T>(args);
  auto kernel = launch.vector ? take_in_kernel<T, false, true> : take_in_kernel<T, false, false>;
  if (launch.whole) kernel = take_in_kernel<T, true, true>;
  launch_early(stream, "ssd, rows next to states", kernel, launch.shape, args, launch.tiles);
}

}  // namespace

void ssd_held_steps(const SsdArgs& args, Stream& stream) {
  CHECK(args.held.every <= kMostHeldEvery);
  with_state_type(args.h.dtype,
                  [&](auto element) { launch_held_steps<decltype(element)>(args, stream); });
}

void ssd_take_in(const SsdArgs& args, Stream& stream) {
  if (args.held.every == 1) return;
  with_state_type(args.h.dtype,
                  [&](auto element) { launch_take_in<decltype(element)>(args, stream); });
}

}  // namespace recurve::cuda::sm80
