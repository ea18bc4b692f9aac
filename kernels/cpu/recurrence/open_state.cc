#include "kernels/cpu/recurrence/open_state.h"

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/recurrence/open_state.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/recurrence/stored_state-inl.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

void widen_state(int64_t count, const uint16_t* stored, float* values) {
  for_lanes(count, [&](auto d, int64_t j)
                       HWY_ATTR { hn::StoreU(load_state(d, stored + j), d, values + j); });
}

// Rounds the values in their place, and stores them unless that is null.
void round_state(int64_t count, float* values, uint16_t* stored) {
  for_lanes(count, [&](auto d, int64_t j) HWY_ATTR {
    const hn::RebindToUnsigned<decltype(d)> words;
    const auto bits = bf16_bits(d, hn::LoadU(d, values + j));
    hn::StoreU(hn::BitCast(d, hn::And(bits, hn::Set(words, 0xffff0000))), d, values + j);
    if (stored != nullptr) store_upper_halves(d, bits, stored + j);
  });
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(widen_state);
HWY_EXPORT(round_state);

StateData stored_from(const StateData& state, int64_t first) {
  if (state.dtype != DType::kBF16) return state.f32() + first;
  return {static_cast<uint16_t*>(state.data) + first, DType::kBF16};
}

void round_as(const StateData& state, float* values, int64_t count) {
  if (state.dtype == DType::kBF16) HWY_DYNAMIC_DISPATCH(round_state)(count, values, nullptr);
}

OpenState::OpenState(const StateData& state, const StatePart& part, bool as_stored, float* copy)
    : part_(part), open_(stored_from(state, part.first)), stride_(part.width) {
  if (as_stored || state.dtype != DType::kBF16) return;
  stored_ = static_cast<uint16_t*>(open_.data);
  open_ = copy;
  stride_ = part.count;
  for (int64_t row = 0; row < part.rows; ++row) {
    HWY_DYNAMIC_DISPATCH(widen_state)
    (part.count, stored_ + row * part.width, copy + row * part.count);
  }
}

void OpenState::end_chunk() {
  if (stored_ == nullptr) return;
  for (int64_t row = 0; row < part_.rows; ++row) {
    HWY_DYNAMIC_DISPATCH(round_state)
    (part_.count, open_.f32() + row * part_.count, stored_ + row * part_.width);
  }
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
