#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"
#include "kernels/open_state.h"

#ifndef RECURVE_CPU_SELECTIVE_SCAN_ONCE
#define RECURVE_CPU_SELECTIVE_SCAN_ONCE
namespace recurve::cpu {

// What the rows bring, when it has been projected and normed.
struct ScanRows {
  const float* dt;  // (rows, D)
  const float* BC;  // (rows, 2 N)
};

}  // namespace recurve::cpu
#endif  // RECURVE_CPU_SELECTIVE_SCAN_ONCE

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/selective_scan.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/dot_tile-inl.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// Advances the N states of one channel by a row, and reads them: C[n] h'[n], whose sum is that of
// the lanes, and the rest where N ends within a vector.
HWY_INLINE DotVector scan_channel(int64_t N, float dt, float x, const float* A, const float* B,
                                  const float* C, float* h, float* rest) {
  const auto advance = [&](auto d, int64_t n) HWY_ATTR {
    const auto step = hn::Set(d, dt);
    const auto decay = exp_of_decay(d, hn::Mul(step, hn::LoadU(d, A + n)));
    const auto put_in = hn::Mul(hn::Mul(step, hn::LoadU(d, B + n)), hn::Set(d, x));
    const auto state = hn::MulAdd(decay, hn::LoadU(d, h + n), put_in);
    hn::StoreU(state, d, h + n);
    return hn::Mul(hn::LoadU(d, C + n), state);
  };
  auto sums = hn::Zero(DotFloats());
  *rest = 0;
  int64_t n = 0;
  for (; n + kDotLanes <= N; n += kDotLanes) sums = hn::Add(sums, advance(DotFloats(), n));
  for (; n < N; ++n) *rest += hn::GetLane(advance(OneFloat(), n));
  return sums;
}

// The same of `count` neighbouring channels, four at a time: adding the lanes of one takes as long
// as those of four. y: (count)
void scan_channels(int64_t N, int64_t count, const float* dt, const float* x, const float* A,
                   const float* B, const float* C, float* h, float* y) {
  const auto channel = [&](int64_t j, float* rest) HWY_ATTR {
    return scan_channel(N, dt[j], x[j], A + j * N, B, C, h + j * N, rest);
  };
  float rest[4];
  int64_t j = 0;
  for (; j + 4 <= count; j += 4) {
    const auto a = channel(j, rest), b = channel(j + 1, rest + 1);
    const auto c = channel(j + 2, rest + 2), d = channel(j + 3, rest + 3);
    store_lane_sums(a, b, c, d, y + j);
    for (int i = 0; i < 4; ++i) y[j + i] += rest[i];
  }
  for (; j < count; ++j) {
    float sums[4];
    const auto one = channel(j, rest);
    store_lane_sums(one, one, one, one, sums);
    y[j] = sums[0] + rest[0];
  }
}

// Channels [begin, end) of one sequence, at most kChannels: their states stay in the first cache
// from row to row.
void scan(const SelectiveScanArgs& a, const ScanRows& rows, int64_t seq, int64_t begin,
          int64_t end) {
  const int64_t N = a.N, count = end - begin;
  const float* A = a.A + begin * N;
  OpenState state(a.h, (int64_t{a.seqs.slot[seq]} * a.D + begin) * N, count * N,
                  scratch(OpenState::room(a.h, count * N)));
  float* h = state.values();
  float dts[kChannels];
  const int64_t first = a.seqs.begin[seq], last = a.seqs.begin[seq + 1];
  for (int64_t row = first; row < last; ++row) {
    const float* x = a.x + row * a.x_stride + begin;
    const float* dt = rows.dt + row * a.D + begin;
    const float* B = rows.BC + row * 2 * N;
    const float* C = B + N;
    float* y = a.y + row * a.D + begin;
    for_lanes(count, [&](auto d, int64_t j) HWY_ATTR {
      const auto biased = hn::Add(hn::LoadU(d, dt + j), hn::LoadU(d, a.dt_bias + begin + j));
      hn::StoreU(softplus(d, biased), d, dts + j);
    });
    scan_channels(N, count, dts, x, A, B, C, h, y);
    for_lanes(count, [&](auto d, int64_t j) HWY_ATTR {
      const auto skip = hn::LoadU(d, a.skip + begin + j);
      auto value = hn::MulAdd(skip, hn::LoadU(d, x + j), hn::LoadU(d, y + j));
      if (a.z != nullptr) {
        value = hn::Mul(value, silu(d, hn::LoadU(d, a.z + row * a.z_stride + begin + j)));
      }
      hn::StoreU(value, d, y + j);
    });
    if ((row - first + 1) % a.chunk == 0 || row + 1 == last) state.end_chunk();
  }
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {
namespace {

HWY_EXPORT(scan);

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

void run(const SelectiveScanArgs& args, Stream& stream) {
  const int64_t rows = args.seqs.rows;
  float* dt = args.scratch;
  float* low = dt + rows * args.D;
  float* BC = low + rows * args.R;
  take_params(args, args.params, args.R, 1, low, stream);
  take_params(args, args.params + args.R, 2 * args.N, 2, BC, stream);
  run(LinearArgs{.rows = args.seqs.rows, .W = args.dt_proj, .x = low, .y = dt}, stream);
  const ScanRows taken = {dt, BC};
  for_channels(pool_of(stream), args.seqs, args.D, 4 * args.N,
               [&](int64_t seq, int64_t begin, int64_t end) {
                 HWY_DYNAMIC_DISPATCH(scan)(args, taken, seq, begin, end);
               });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
