// What rows bring to a strip of channels of Mamba's scan: time steps, inputs and gates, compiled
// once for each instruction set.
#if defined(RECURVE_CPU_SELECTIVE_SCAN_ROWS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef RECURVE_CPU_SELECTIVE_SCAN_ROWS_INL_H
#undef RECURVE_CPU_SELECTIVE_SCAN_ROWS_INL_H
#else
#define RECURVE_CPU_SELECTIVE_SCAN_ROWS_INL_H
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/fetch.h"
#include "kernels/cpu/linear/sum_tile-inl.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/recurrence/stored_state-inl.h"
#include "kernels/cpu/transpose-inl.h"
#include "kernels/cpu/vector_math-inl.h"
#include "kernels/ops/selective_scan.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// What a row brings to each channel of a strip.
struct alignas(kLine) RowOfStrip {
  float rate[kChannels];   // dt / ln 2
  float input[kChannels];  // dt x
  float gate[kChannels];   // silu(z), where there is a gate
};

// Those of some rows, which are made together: so none waits for itself, and they stay in the first
// cache until they are used.
class StripRows {
 public:
  // low: (rows, R); weights: memory for (R, kChannels)
  StripRows(const SelectiveScanArgs& a, const float* low, float* weights)
      : a_(a), low_(low), weights_(weights) {}

  // The channels [begin, end) come next, at most kChannels.
  void begin_strip(int64_t begin, int64_t end) {
    first_channel_ = begin;
    channels_ = end - begin;
    begin_ = end_ = 0;
    const int64_t R = a_.R;
    const auto turn_over = [&](const auto* W) {
      turn(channels_, R, W + begin * R, R, weights_, kChannels);
    };
    if (a_.dt_proj.dtype == DType::kF32) {
      turn_over(static_cast<const float*>(a_.dt_proj.data));
    } else if (R % 2 != 0) {
      turn_over(static_cast<const uint16_t*>(a_.dt_proj.data));
    } else {
      turn_pairs(static_cast<const uint16_t*>(a_.dt_proj.data) + begin * R);
    }
  }

  // Rows are asked for in their order.
  const RowOfStrip& row(int64_t row) {
    if (row < begin_ || row >= end_) make<kSumRows>(row);
    const int64_t ahead = std::min<int64_t>(row + kSumRows, a_.seqs.rows - 1);
    fetch_row(a_.x + ahead * a_.x_stride + first_channel_, channels_);
    if (a_.z != nullptr) fetch_row(a_.z + ahead * a_.z_stride + first_channel_, channels_);
    return rows_[row - begin_];
  }

 private:
  // Two values in BF16 are turned over as one, and told apart then. from: (channels, R)
  void turn_pairs(const uint16_t* from) {
    const int64_t pairs = a_.R / 2;
    turn(channels_, pairs, reinterpret_cast<const float*>(from), pairs, weights_ + kChannels,
         2 * kChannels);
    for (int64_t pair = 0; pair < pairs; ++pair) {
      float* even = weights_ + 2 * pair * kChannels;
      float* odd = even + kChannels;
      for_lanes(channels_, [&](auto d, int64_t j) HWY_ATTR {
        hn::Vec<decltype(d)> both[2];
        load_columns(d, reinterpret_cast<const uint16_t*>(odd + j), both);
        hn::StoreU(both[0], d, even + j);
        hn::StoreU(both[1], d, odd + j);
      });
    }
  }

  // ROWS rows from `row` on, or fewer if fewer are left.
  template <int ROWS>
  void make(int64_t row) {
    if constexpr (ROWS > 1) {
      if (row + ROWS > a_.seqs.rows) return make<kFewerRows<ROWS>>(row);
    }
    begin_ = row;
    end_ = row + ROWS;
    constexpr int kVectors = ROWS == 1 ? kTogether : 2;  // so that no sum waits for itself
    for_several<kVectors>(channels_, [&]<int VECTORS>(auto d, int64_t at)
                                         HWY_ATTR { project<ROWS, VECTORS>(d, at); });
    for (int r = 0; r < ROWS; ++r) {
      for_several<kTogether>(channels_, [&]<int COUNT>(auto d, int64_t at)
                                            HWY_ATTR { prepare<COUNT>(d, row + r, at, rows_[r]); });
    }
  }

  // dt without its bias, of the channels from `at` on, into the rates.
  template <int ROWS, int VECTORS, class D>
  HWY_INLINE void project(D d, int64_t at) {
    constexpr int64_t kLanes = hn::MaxLanes(d);
    const float* x[ROWS];
    hn::Vec<D> sum[ROWS][VECTORS];
    HWY_UNROLL(8)
    for (int r = 0; r < ROWS; ++r) {
      x[r] = low_ + (begin_ + r) * a_.R;
      HWY_UNROLL(4)
      for (int v = 0; v < VECTORS; ++v) sum[r][v] = hn::Zero(d);
    }
    for (int64_t k = 0; k < a_.R; ++k) add_products(d, x, k, weights_ + k * kChannels + at, sum);
    HWY_UNROLL(8)
    for (int r = 0; r < ROWS; ++r) {
      HWY_UNROLL(4)
      for (int v = 0; v < VECTORS; ++v) {
        hn::StoreU(sum[r][v], d, rows_[r].rate + at + v * kLanes);
      }
    }
  }

  // Of a row whose rates are dt without its bias, the channels from `at` on.
  template <int COUNT, class D>
  HWY_INLINE void prepare(D d, int64_t row, int64_t at, RowOfStrip& to) const {
    constexpr int64_t kLanes = hn::MaxLanes(d);
    const float* bias = a_.dt_bias + first_channel_ + at;
    const float* x = a_.x + row * a_.x_stride + first_channel_ + at;
    hn::Vec<D> dt[COUNT];
    each<COUNT>([&](int i) HWY_ATTR {
      dt[i] = hn::Add(hn::LoadU(d, to.rate + at + i * kLanes), hn::LoadU(d, bias + i * kLanes));
    });
    softpluses(d, dt);
    each<COUNT>([&](int i) HWY_ATTR {
      hn::StoreU(hn::Mul(dt[i], hn::Set(d, 1.44269504f)), d, to.rate + at + i * kLanes);
      hn::StoreU(hn::Mul(dt[i], hn::LoadU(d, x + i * kLanes)), d, to.input + at + i * kLanes);
    });
    if (a_.z == nullptr) return;
    const float* z = a_.z + row * a_.z_stride + first_channel_ + at;
    hn::Vec<D> gate[COUNT];
    each<COUNT>([&](int i) HWY_ATTR { gate[i] = hn::LoadU(d, z + i * kLanes); });
    silus(d, gate);
    each<COUNT>([&](int i) HWY_ATTR { hn::StoreU(gate[i], d, to.gate + at + i * kLanes); });
  }

  const SelectiveScanArgs& a_;
  const float* const low_;
  float* const weights_;  // (R, kChannels)
  int64_t first_channel_ = 0, channels_ = 0;
  RowOfStrip rows_[kSumRows];  // the rows [begin_, end_)
  int64_t begin_ = 0, end_ = 0;
};

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard by target
