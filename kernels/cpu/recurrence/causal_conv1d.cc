#include <algorithm>

#include "kernels/cpu/fetch.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/recurrence/causal_conv1d.cc"
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

// Channels [begin, end) of the first rows of a sequence, up to `last`. What the filter holds stays
// in registers from the first row to the last.
template <int WIDTH>
void filter_channels(const CausalConv1dArgs& a, int64_t seq, int64_t last, int64_t begin,
                     int64_t end) {
  float* states = a.state + int64_t{a.seqs.slot[seq]} * a.D * (WIDTH - 1);
  for_lanes(end - begin, [&](auto d, int64_t index) HWY_ATTR {
    using V = hn::Vec<decltype(d)>;
    const int64_t channel = begin + index;
    V w[WIDTH], past[WIDTH - 1];
    load_channels<WIDTH>(d, a.w + channel * WIDTH, w);
    load_channels<WIDTH - 1>(d, states + channel * (WIDTH - 1), past);
    const V bias = a.bias == nullptr ? hn::Zero(d) : hn::LoadU(d, a.bias + channel);
    for (int64_t row = a.seqs.begin[seq]; row < last; ++row) {
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

// The filter of some channels, turned over: weights[j] (channels), and the bias.
template <int WIDTH>
struct Filter {
  float weights[WIDTH][kChannels];
  float bias[kChannels];

  Filter(const CausalConv1dArgs& a, int64_t begin, int64_t end) {
    for_lanes(end - begin, [&](auto d, int64_t at) HWY_ATTR {
      hn::Vec<decltype(d)> w[WIDTH];
      load_channels<WIDTH>(d, a.w + (begin + at) * WIDTH, w);
      HWY_UNROLL(4)
      for (int j = 0; j < WIDTH; ++j) hn::StoreU(w[j], d, weights[j] + at);
      hn::StoreU(a.bias == nullptr ? hn::Zero(d) : hn::LoadU(d, a.bias + begin + at), d, bias + at);
    });
  }
};

// COUNT vectors of a row that sees no other but those of x, from the channel `at` of `filter` on.
// x, y: that channel of the row
template <int COUNT, int WIDTH, class D>
HWY_INLINE void filter_vectors(D d, const CausalConv1dArgs& a, const Filter<WIDTH>& filter,
                               int64_t at, const float* x, float* y) {
  constexpr int64_t kLanes = hn::MaxLanes(d);
  hn::Vec<D> sum[COUNT];
  each<COUNT>([&](int i) HWY_ATTR { sum[i] = hn::LoadU(d, filter.bias + at + i * kLanes); });
  HWY_UNROLL(4)
  for (int j = 0; j < WIDTH; ++j) {
    const float* from = x - (WIDTH - 1 - j) * int64_t{a.x_stride};
    each<COUNT>([&](int i) HWY_ATTR {
      const auto w = hn::LoadU(d, filter.weights[j] + at + i * kLanes);
      sum[i] = hn::MulAdd(w, hn::LoadU(d, from + i * kLanes), sum[i]);
    });
  }
  if (a.silu) silus(d, sum);
  each<COUNT>([&](int i) HWY_ATTR { hn::StoreU(sum[i], d, y + i * kLanes); });
}

// Channels [begin, end), kChannels at most, of the rows [first, last), which see no other but those
// of x: row by row, as rows are too far from each other for the processor to foresee.
template <int WIDTH>
void filter_rows(const CausalConv1dArgs& a, int64_t first, int64_t last, int64_t begin,
                 int64_t end) {
  constexpr int64_t kRowsAhead = 4;
  const Filter<WIDTH> filter(a, begin, end);
  for (int64_t row = first; row < last; ++row) {
    const float* x = a.x + row * a.x_stride + begin;
    float* y = a.y + row * a.D + begin;
    fetch_row(x + std::min(kRowsAhead, last - 1 - row) * a.x_stride, end - begin);
    for_several<kTogether>(end - begin, [&]<int COUNT>(auto d, int64_t at) HWY_ATTR {
      filter_vectors<COUNT>(d, a, filter, at, x + at, y + at);
    });
  }
}

// Channels [begin, end), kChannels at most, of one sequence.
template <int WIDTH>
void filter_sequence(const CausalConv1dArgs& a, int64_t seq, int64_t begin, int64_t end) {
  const int64_t first = a.seqs.begin[seq], last = a.seqs.begin[seq + 1];
  const int64_t alone = last - first < 4 * WIDTH ? last : first + WIDTH - 1;
  filter_channels<WIDTH>(a, seq, alone, begin, end);
  if (alone == last) return;
  filter_rows<WIDTH>(a, alone, last, begin, end);
  float* states = a.state + int64_t{a.seqs.slot[seq]} * a.D * (WIDTH - 1);
  for_lanes(end - begin, [&](auto d, int64_t index) HWY_ATTR {
    hn::Vec<decltype(d)> past[WIDTH - 1];
    HWY_UNROLL(4)
    for (int j = 0; j < WIDTH - 1; ++j) {
      past[j] = hn::LoadU(d, a.x + (last - (WIDTH - 1) + j) * a.x_stride + begin + index);
    }
    store_channels<WIDTH - 1>(d, past, states + (begin + index) * (WIDTH - 1));
  });
}

// Filters channels with a filter of any width, for widths that no public model has.
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
      return filter_sequence<2>(a, seq, begin, end);
    case 3:
      return filter_sequence<3>(a, seq, begin, end);
    case 4:
      return filter_sequence<4>(a, seq, begin, end);
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
