// Values of states as they are stored, compiled once for each instruction set.
#if defined(RECURVE_CPU_STORED_STATE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef RECURVE_CPU_STORED_STATE_INL_H
#undef RECURVE_CPU_STORED_STATE_INL_H
#else
#define RECURVE_CPU_STORED_STATE_INL_H
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/fetch.h"
#include "kernels/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The bits of f32_to_bf16(v) in the upper halves of the lanes; anything in the lower ones. NaN is
// quiet, as all operations make it.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> bf16_bits(D, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> words;
  const auto bits = hn::BitCast(words, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1));
  const auto added = hn::Add(odd, hn::Set(words, 0x7fff));
  const auto nan = hn::RebindMask(words, hn::IsNaN(v));  // which this could carry into infinity
  return hn::Add(bits, hn::IfThenZeroElse(nan, added));
}

template <class D>
HWY_INLINE void store_upper_halves(D, hn::Vec<hn::RebindToUnsigned<D>> bits, uint16_t* to) {
  const hn::RebindToSigned<D> ints;
  const hn::Rebind<uint16_t, D> halves;
  hn::StoreU(hn::DemoteTo(halves, hn::BitCast(ints, hn::ShiftRight<16>(bits))), halves, to);
}

// A vector of a state that is stored in fp32 or, behind a pointer to uint16_t, in BF16.
template <class D>
HWY_INLINE hn::Vec<D> load_state(D d, const float* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> load_state(D d, const uint16_t* from) {
  const hn::RebindToUnsigned<D> words;
  const hn::Rebind<uint16_t, D> halves;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(words, hn::LoadU(halves, from))));
}
template <class D>
HWY_INLINE void store_state(D d, hn::Vec<D> v, float* to) {
  hn::StoreU(v, d, to);
}
template <class D>
HWY_INLINE void store_state(D d, hn::Vec<D> v, uint16_t* to) {
  store_upper_halves(d, bf16_bits(d, v), to);
}

// For a step, which goes through a state that comes from memory, a vector at a time: where value n
// of a row begins a line, asks for the line FetchNear::kAhead behind it.
template <class D, class T>
HWY_INLINE void fetch_state(D d, const T* row, int64_t n) {
  constexpr int64_t kBytes = sizeof(T);
  if constexpr (hn::MaxLanes(d) * kBytes % kLine != 0) {
    if (n * kBytes % kLine != 0) return;
  }
  fetch_lines<1>(reinterpret_cast<const std::byte*>(row + n) + FetchNear::kAhead);
}

// COUNT vectors of a row of a state, whose columns are all computed alike: in an order of lanes
// that is the quickest for T. Of two vectors in BF16 one has the even and one the odd columns, so
// that no half of a word changes its place. What else has these columns is loaded and stored in
// that order.

template <class T, int COUNT, class D>
constexpr bool takes_even_and_odd(D d) {
  return HWY_TARGET != HWY_SCALAR && sizeof(T) == 2 && COUNT % 2 == 0 && hn::MaxLanes(d) > 1;
}

template <int COUNT, class T, class D>
HWY_INLINE void load_columns(D d, const T* from, hn::Vec<D> (&v)[COUNT]) {
  constexpr int64_t kLanes = hn::MaxLanes(d);
  if constexpr (takes_even_and_odd<T, COUNT>(d)) {
    const hn::RebindToUnsigned<D> words;
    const hn::Repartition<uint16_t, D> halves;
    HWY_UNROLL(2)
    for (int j = 0; j < COUNT; j += 2) {
      const auto both = hn::BitCast(words, hn::LoadU(halves, from + j * kLanes));
      v[j] = hn::BitCast(d, hn::ShiftLeft<16>(both));
      v[j + 1] = hn::BitCast(d, hn::And(both, hn::Set(words, 0xffff0000)));
    }
  } else {
    HWY_UNROLL(4)
    for (int j = 0; j < COUNT; ++j) v[j] = load_state(d, from + j * kLanes);
  }
}

template <int COUNT, class T, class D>
HWY_INLINE void store_columns(D d, const hn::Vec<D> (&v)[COUNT], T* to) {
  constexpr int64_t kLanes = hn::MaxLanes(d);
  if constexpr (takes_even_and_odd<T, COUNT>(d)) {
    const hn::Repartition<uint16_t, D> halves;
    HWY_UNROLL(2)
    for (int j = 0; j < COUNT; j += 2) {
      const auto even = hn::BitCast(halves, hn::ShiftRight<16>(bf16_bits(d, v[j])));
      const auto odd = hn::BitCast(halves, bf16_bits(d, v[j + 1]));
      hn::StoreU(hn::OddEven(odd, even), halves, to + j * kLanes);
    }
  } else {
    HWY_UNROLL(4)
    for (int j = 0; j < COUNT; ++j) store_state(d, v[j], to + j * kLanes);
  }
}

// Floats in the order that columns in T have.
template <class T, int COUNT, class D>
HWY_INLINE void load_as_columns(D d, const float* from, hn::Vec<D> (&v)[COUNT]) {
  constexpr int64_t kLanes = hn::MaxLanes(d);
  if constexpr (takes_even_and_odd<T, COUNT>(d)) {
    HWY_UNROLL(2)
    for (int j = 0; j < COUNT; j += 2) hn::LoadInterleaved2(d, from + j * kLanes, v[j], v[j + 1]);
  } else {
    load_columns(d, from, v);
  }
}
template <class T, int COUNT, class D>
HWY_INLINE void store_as_columns(D d, const hn::Vec<D> (&v)[COUNT], float* to) {
  constexpr int64_t kLanes = hn::MaxLanes(d);
  if constexpr (takes_even_and_odd<T, COUNT>(d)) {
    HWY_UNROLL(2)
    for (int j = 0; j < COUNT; j += 2) hn::StoreInterleaved2(v[j], v[j + 1], d, to + j * kLanes);
  } else {
    store_columns(d, v, to);
  }
}

// Calls body(values) with a pointer to what is stored: to float or, of BF16, to uint16_t.
template <class Body>
HWY_INLINE void with_stored(const StateData& state, Body body) {
  if (state.dtype == DType::kBF16) {
    body(static_cast<uint16_t*>(state.data));
  } else {
    body(state.f32());
  }
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard by target
