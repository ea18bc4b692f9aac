#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/recurrence/open_state.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#ifndef RECURVE_CPU_SELECTIVE_SCAN_ONCE
#define RECURVE_CPU_SELECTIVE_SCAN_ONCE
namespace recurve::cpu {

// What the rows bring, when it has been normed.
struct ScanRows {
  const float* low;  // (rows, R)
  const float* BC;   // (rows, 2 N)
};

// Scratch of a strip: A and h, (N, kChannels), and what StripRows takes.
inline size_t scan_floats(const SelectiveScanArgs& a) {
  return static_cast<size_t>(2 * a.N + a.R) * kChannels;
}

}  // namespace recurve::cpu
#endif  // RECURVE_CPU_SELECTIVE_SCAN_ONCE

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/recurrence/selective_scan.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/recurrence/selective_scan_rows-inl.h"
#include "kernels/cpu/recurrence/stored_state-inl.h"
#include "kernels/cpu/transpose-inl.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// Inside, a strip of channels is the other way round than in memory, (N, kChannels): a vector's
// lanes are channels then, which share B and C, and nothing is added across lanes.

// Advances COUNT states of neighbouring channels by a row, and adds C[n] h'[n] to y.
// rate: dt / ln 2; input: dt x; A, h: (COUNT, kChannels); B, C: (COUNT)
template <int COUNT, class D>
HWY_INLINE void advance(D d, hn::Vec<D> rate, hn::Vec<D> input, const float* A, const float* B,
                        const float* C, float* h, hn::Vec<D>& y) {
  hn::Vec<D> decays[COUNT];
  each<COUNT>([&](int n) HWY_ATTR { decays[n] = hn::LoadU(d, A + n * kChannels); });
  exp2_of_products(d, rate, decays);
  HWY_UNROLL(8)
  for (int n = 0; n < COUNT; ++n) {
    const auto put_in = hn::Mul(input, hn::Set(d, B[n]));
    const auto state = hn::MulAdd(decays[n], hn::LoadU(d, h + n * kChannels), put_in);
    hn::StoreU(state, d, h + n * kChannels);
    y = hn::MulAdd(hn::Set(d, C[n]), state, y);
  }
}

// All of them, and sum_n C[n] h'[n]. A, h: (N, kChannels), from the first of these channels on.
template <class D>
HWY_INLINE hn::Vec<D> advance_all(D d, int64_t N, hn::Vec<D> rate, hn::Vec<D> input, const float* A,
                                  const float* B, const float* C, float* h) {
  auto y = hn::Zero(d);
  int64_t n = 0;
  for (; n + kTogether <= N; n += kTogether) {
    advance<kTogether>(d, rate, input, A + n * kChannels, B + n, C + n, h + n * kChannels, y);
  }
  for (; n < N; ++n) {
    advance<1>(d, rate, input, A + n * kChannels, B + n, C + n, h + n * kChannels, y);
  }
  return y;
}

// Channels [begin, end) of one row, of which `strip` is what it brings. A, h: (N, kChannels);
// BC: (rows, 2 N)
void scan_row(const SelectiveScanArgs& a, const RowOfStrip& strip, const float* BC, int64_t row,
              int64_t begin, int64_t end, const float* A, float* h) {
  const float* B = BC + row * 2 * a.N;
  const float* x = a.x + row * a.x_stride + begin;
  float* to = a.y + row * a.D + begin;
  for_lanes(end - begin, [&](auto d, int64_t j) HWY_ATTR __attribute__((always_inline)) {
    auto y = advance_all(d, a.N, hn::LoadU(d, strip.rate + j), hn::LoadU(d, strip.input + j), A + j,
                         B, B + a.N, h + j);
    y = hn::MulAdd(hn::LoadU(d, a.skip + begin + j), hn::LoadU(d, x + j), y);
    if (a.z != nullptr) y = hn::Mul(y, hn::LoadU(d, strip.gate + j));
    hn::StoreU(y, d, to + j);
  });
}

// Channels [begin, end) of one sequence, at most kChannels: their states stay in the first cache
// from row to row. A, h: (N, kChannels)
void scan(const SelectiveScanArgs& a, StripRows& rows, const float* BC, const float* A, int64_t seq,
          int64_t begin, int64_t end, float* h) {
  const int64_t N = a.N, count = end - begin;
  const StateData state = stored_from(a.h, (int64_t{a.seqs.slot[seq]} * a.D + begin) * N);
  const int64_t last = a.seqs.begin[seq + 1];
  with_stored(state, [&](auto* stored) { turn(count, N, stored, N, h, kChannels); });
  for (int64_t row = a.seqs.begin[seq]; row < last;) {
    const int64_t chunk_end = std::min<int64_t>(row + a.chunk, last);
    for (; row < chunk_end; ++row) scan_row(a, rows.row(row), BC, row, begin, end, A, h);
    for (int64_t n = 0; row < last && n < N; ++n) round_as(state, h + n * kChannels, count);
  }
  with_stored(state, [&](auto* stored) { turn(N, count, h, kChannels, stored, N); });
}

// Items of a list of all sequences for each strip.
void scan_items(const SelectiveScanArgs& a, const ScanRows& brought, int64_t first, int64_t last) {
  const int64_t N = a.N, strip_floats = N * kChannels;
  float* A = scratch(scan_floats(a));
  float* h = A + strip_floats;
  StripRows rows(a, brought.low, h + strip_floats);
  int64_t loaded = -1;
  for (int64_t item = first; item < last; ++item) {
    const int64_t strip = item / a.seqs.num_seqs, seq = item % a.seqs.num_seqs;
    const int64_t begin = strip * kChannels, end = std::min<int64_t>(begin + kChannels, a.D);
    if (loaded != strip) {
      turn(end - begin, N, a.A + begin * N, N, A, kChannels);
      rows.begin_strip(begin, end);
    }
    loaded = strip;
    scan(a, rows, brought.BC, A, seq, begin, end, h);
  }
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {
namespace {

HWY_EXPORT(scan_items);

// `width` of the parameters of each row to y (rows, width): groups of them normed where the op
// norms them.
void take_params(const SelectiveScanArgs& a, const float* from, int width, int groups, float* y,
                 Stream& stream) {
  if (a.norm_eps > 0) {
    run(GatedRmsNormArgs{.rows = a.seqs.rows,
                         .D = width,
                         .G = groups,
                         .eps = a.norm_eps,
                         .x_stride = a.params_stride,
                         .z_stride = 0,
                         .y_stride = width,
                         .x = from,
                         .z = nullptr,
                         .w = nullptr,
                         .y = y},
        stream);
    return;
  }
  for (int64_t row = 0; row < a.seqs.rows; ++row) {
    std::copy_n(from + row * a.params_stride, width, y + row * width);
  }
}

}  // namespace

ScratchBytes scratch_of(const SelectiveScanArgs& args) {
  return {.thread = scan_floats(args) * sizeof(float)};
}

void run(const SelectiveScanArgs& args, Stream& stream) {
  CHECK(args.dt_proj.dtype == DType::kBF16 || args.dt_proj.dtype == DType::kF32);
  const int64_t rows = args.seqs.rows;
  float* low = args.scratch;
  float* BC = low + rows * args.R;
  take_params(args, args.params, args.R, 1, low, stream);
  take_params(args, args.params + args.R, 2 * args.N, 2, BC, stream);
  const ScanRows taken = {low, BC};
  const int64_t seqs = args.seqs.num_seqs;
  if (seqs == 0) return;
  for_blocks(pool_of(stream), seqs * ceil_div(args.D, kChannels),
             ceil_div(rows, seqs) * kChannels * 4 * args.N, [&](int64_t begin, int64_t end) {
               HWY_DYNAMIC_DISPATCH(scan_items)(args, taken, begin, end);
             });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
