#include <cmath>
#include <numeric>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rotary.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// All heads of one row: x (H, D), cosines and sines (D / 2).
void turn_row(const RotaryArgs& a, const float* cosines, const float* sines, float* x) {
  const int64_t half = a.D / 2, head_stride = a.head_stride > 0 ? a.head_stride : a.D;
  for (int head = 0; head < a.H; ++head, x += head_stride) {
    for_lanes(half, [&](auto d, int64_t j) HWY_ATTR {
      const auto c = hn::LoadU(d, cosines + j), s = hn::LoadU(d, sines + j);
      const auto first = hn::LoadU(d, x + j), second = hn::LoadU(d, x + half + j);
      hn::StoreU(hn::NegMulAdd(second, s, hn::Mul(first, c)), d, x + j);
      hn::StoreU(hn::MulAdd(first, s, hn::Mul(second, c)), d, x + half + j);
    });
  }
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(turn_row);

void run(const PositionsArgs& args, Stream&) {
  for (int seq = 0; seq < args.seqs.num_seqs; ++seq) {
    const int32_t begin = args.seqs.begin[seq], end = args.seqs.begin[seq + 1];
    int32_t& count = args.count[args.seqs.slot[seq]];
    std::iota(args.position + begin, args.position + end, count);
    count += end - begin;
  }
}

ScratchBytes scratch_of(const RotaryArgs& args) {
  return {.thread = static_cast<size_t>(args.D) * sizeof(float)};
}

// The angles are the same for all heads, so that their functions, taken in double and one by one,
// cost little next to the rest.
void run(const RotaryArgs& args, Stream& stream) {
  const int half = args.D / 2;
  const int64_t cost = int64_t{half} * (60 + 4 * args.H);
  for_blocks(pool_of(stream), args.rows, cost, [&](int64_t begin, int64_t end) {
    float* cosines = scratch(args.D);
    float* sines = cosines + half;
    for (int64_t r = begin; r < end; ++r) {
      for (int j = 0; j < half; ++j) {
        const double angle = static_cast<double>(args.position[r]) * args.frequency[j];
        cosines[j] = static_cast<float>(std::cos(angle));
        sines[j] = static_cast<float>(std::sin(angle));
      }
      HWY_DYNAMIC_DISPATCH(turn_row)(args, cosines, sines, args.x + r * args.stride);
    }
  });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
