#pragma once
// What lies next to a state that is written once in several rows (kernels/ops/held_rows.h), for
// RecurrenceOps.
#include <bit>
#include <limits>
#include <optional>

#include "tests/support/kernels/recurrence_case.h"

namespace recurve::testing {

// An array of them: (every - 1, width), or of one value a head (width, every - 1). negative: small
// ones, so that a base of full rank is most of the state: what rounds it is many roundings then.
struct HeldArray {
  int width;
  bool by_head = false, negative = false;
};

// Adds these to the states of the op, and last the number of the rows: as the bits of a float. The
// rows behind those that there are hold NaN.
inline void hold_rows(RecurrenceOp& op, int every, const std::vector<HeldArray>& arrays) {
  const int values = op.state_size(), rows = every - 1;
  for (const HeldArray& array : arrays) op.state.push_back(rows * array.width);
  op.state.push_back(1);
  op.some_state = [=](std::mt19937_64& random) {
    std::vector<float> state = normal_floats(random, static_cast<size_t>(values));
    const auto count = static_cast<int32_t>(random() % static_cast<uint64_t>(every));
    for (const HeldArray& array : arrays) {
      for (int i = 0; i < rows * array.width; ++i) {
        const int row = array.by_head ? i % rows : i / array.width;
        const float value = normal_floats(random, 1)[0];
        state.push_back(row >= count     ? std::numeric_limits<float>::quiet_NaN()
                        : array.negative ? -0.1f * std::abs(value)
                                         : value);
      }
    }
    state.push_back(std::bit_cast<float>(count));
    return state;
  };
}

// Counts the rows of a call. states: of the op, whose last array is their number.
class HeldCount {
 public:
  HeldCount(KernelDevice& device, const Ragged& seqs, int chunk, int every,
            const std::vector<StateData>& states)
      : states_(states), every_(every) {
    if (every == 1) return;
    before_.emplace(device.array(std::vector<int32_t>(static_cast<size_t>(seqs.num_seqs), -1)));
    device.kernels().held_rows({.seqs = seqs,
                                .chunk = chunk,
                                .every = every,
                                .count = static_cast<int32_t*>(states.back().data),
                                .before = before_->data()},
                               *device.stream);
  }
  HeldRows held() const { return {every_, every_ == 1 ? nullptr : before_->data()}; }
  float* array(size_t i) const { return every_ == 1 ? nullptr : states_[i].f32(); }
  // Until the op has read them.
  void wait() const {
    if (!before_) return;
    EXPECT_TRUE(before_->guards_intact());
  }

 private:
  const std::vector<StateData>& states_;
  const int every_;
  std::optional<DeviceArray<int32_t>> before_;
};

}  // namespace recurve::testing
