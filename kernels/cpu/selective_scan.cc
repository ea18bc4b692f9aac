#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"
#include "kernels/open_state.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/selective_scan.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// Advances the N states of one channel by a row, and reads them: sum of C[n] h'[n].
HWY_INLINE float scan_channel(int64_t N, float dt, float x, const float* A, const float* B,
                              const float* C, float* h) {
  return sum_over(N, [&](auto d, int64_t n) HWY_ATTR {
    const auto step = hn::Set(d, dt);
    const auto decay = exp(d, hn::Mul(step, hn::LoadU(d, A + n)));
    const auto put_in = hn::Mul(hn::Mul(step, hn::LoadU(d, B + n)), hn::Set(d, x));
    const auto state = hn::MulAdd(decay, hn::LoadU(d, h + n), put_in);
    hn::StoreU(state, d, h + n);
    return hn::Mul(hn::LoadU(d, C + n), state);
  });
}

// Channels [begin, end) of one sequence, at most kChannels: their states stay in the first cache
// from row to row.
void scan(const SelectiveScanArgs& a, int64_t seq, int64_t begin, int64_t end) {
  const int64_t N = a.N, count = end - begin;
  const float* A = a.A + begin * N;
  OpenState state(a.h, (int64_t{a.seqs.slot[seq]} * a.D + begin) * N, count * N,
                  scratch(OpenState::room(a.h, count * N)));
  float* h = state.values();
  float dts[kChannels];
  const int64_t first = a.seqs.begin[seq], last = a.seqs.begin[seq + 1];
  for (int64_t row = first; row < last; ++row) {
    const float* x = a.x + row * a.x_stride + begin;
    const float* dt = a.dt + row * a.dt_stride + begin;
    const float* B = a.B + row * a.BC_stride;
    const float* C = a.C + row * a.BC_stride;
    float* y = a.y + row * a.D + begin;
    for_lanes(count, [&](auto d, int64_t j) HWY_ATTR {
      const auto biased = hn::Add(hn::LoadU(d, dt + j), hn::LoadU(d, a.dt_bias + begin + j));
      hn::StoreU(softplus(d, biased), d, dts + j);
    });
    for (int64_t j = 0; j < count; ++j) {
      y[j] = scan_channel(N, dts[j], x[j], A + j * N, B, C, h + j * N);
    }
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

HWY_EXPORT(scan);

void selective_scan(const SelectiveScanArgs& args, Stream& stream) {
  for_channels(pool_of(stream), args.seqs, args.D, 4 * args.N,
               [&](int64_t seq, int64_t begin, int64_t end) {
                 HWY_DYNAMIC_DISPATCH(scan)(args, seq, begin, end);
               });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
