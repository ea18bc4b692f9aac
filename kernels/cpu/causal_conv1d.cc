#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/causal_conv1d.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// COUNT values each of neighbouring channels, those of one channel side by side in memory.
template <int COUNT, class D>
HWY_INLINE void load_channels(D d, const float* from, hn::Vec<D> (&to)[COUNT]) {
  if constexpr (COUNT == 1) {
    to[0] = hn::LoadU(d, from);
  } else if constexpr (COUNT == 2) {
    hn::LoadInterleaved2(d, from, to[0], to[1]);
  } else if constexpr (COUNT == 3) {
    hn::LoadInterleaved3(d, from, to[0], to[1], to[2]);
  } else {
    static_assert(COUNT == 4);
    hn::LoadInterleaved4(d, from, to[0], to[1], to[2], to[3]);
  }
}

template <int COUNT, class D>
HWY_INLINE void store_channels(D d, const hn::Vec<D> (&from)[COUNT], float* to) {
  if constexpr (COUNT == 1) {
    hn::StoreU(from[0], d, to);
  } else if constexpr (COUNT == 2) {
    hn::StoreInterleaved2(from[0], from[1], d, to);
  } else {
    static_assert(COUNT == 3);
    hn::StoreInterleaved3(from[0], from[1], from[2], d, to);
  }
}

// Channels [begin, end) of one sequence. What the filter holds stays in registers from the first
// row to the last.
template <int WIDTH>
void filter_channels(const CausalConv1dArgs& a, int64_t seq, int64_t begin, int64_t end) {
  const int64_t first = a.seqs.begin[seq], last = a.seqs.begin[seq + 1];
  float* states = a.state + int64_t{a.seqs.slot[seq]} * a.D * (WIDTH - 1);
  for_lanes(end - begin, [&](auto d, int64_t index) HWY_ATTR {
    using V = hn::Vec<decltype(d)>;
    const int64_t channel = begin + index;
    V w[WIDTH], past[WIDTH - 1];
    load_channels<WIDTH>(d, a.w + channel * WIDTH, w);
    load_channels<WIDTH - 1>(d, states + channel * (WIDTH - 1), past);
    const V bias = a.bias == nullptr ? hn::Zero(d) : hn::LoadU(d, a.bias + channel);
    for (int64_t row = first; row < last; ++row) {
      const V x = hn::LoadU(d, a.x + row * a.x_stride + channel);
      V sum = bias;
      HWY_UNROLL(4)
      for (int j = 0; j < WIDTH - 1; ++j) sum = hn::MulAdd(w[j], past[j], sum);
      sum = hn::MulAdd(w[WIDTH - 1], x, sum);
      hn::StoreU(a.silu ? silu(d, sum) : sum, d, a.y + row * a.D + channel);
      HWY_UNROLL(4)
      for (int j = 0; j + 1 < WIDTH - 1; ++j) past[j] = past[j + 1];
      past[WIDTH - 2] = x;
    }
    store_channels<WIDTH - 1>(d, past, states + channel * (WIDTH - 1));
  });
}

// Filters channels with a filter of any width, for filters that nobody has.
void filter_channels_of(const CausalConv1dArgs& a, int64_t seq, int64_t begin, int64_t end) {
  const int64_t past = a.width - 1;
  for (int64_t channel = begin; channel < end; ++channel) {
    float* state = a.state + (int64_t{a.seqs.slot[seq]} * a.D + channel) * past;
    const float* w = a.w + channel * a.width;
    for (int64_t row = a.seqs.begin[seq]; row < a.seqs.begin[seq + 1]; ++row) {
      const float x = a.x[row * a.x_stride + channel];
      float sum = a.bias == nullptr ? 0 : a.bias[channel];
      for (int64_t j = 0; j < past; ++j) sum += w[j] * state[j];
      sum += w[past] * x;
      const OneFloat d;
      a.y[row * a.D + channel] = a.silu ? hn::GetLane(silu(d, hn::Set(d, sum))) : sum;
      std::copy(state + 1, state + past, state);
      state[past - 1] = x;
    }
  }
}

void convolve(const CausalConv1dArgs& a, int64_t seq, int64_t begin, int64_t end) {
  switch (a.width) {
    case 2:
      return filter_channels<2>(a, seq, begin, end);
    case 3:
      return filter_channels<3>(a, seq, begin, end);
    case 4:
      return filter_channels<4>(a, seq, begin, end);
    default:
      return filter_channels_of(a, seq, begin, end);
  }
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(convolve);

void run(const CausalConv1dArgs& args, Stream& stream) {
  for_channels(pool_of(stream), args.seqs, args.D, 4 * args.width,
               [&](int64_t seq, int64_t begin, int64_t end) {
                 HWY_DYNAMIC_DISPATCH(convolve)(args, seq, begin, end);
               });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
