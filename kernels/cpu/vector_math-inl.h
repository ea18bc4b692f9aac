// Vector functions of the CPU kernels, compiled once for each instruction set.
// NaN gives NaN and infinities give the limits, as in the C library.
#if defined(RECURVE_CPU_VECTOR_MATH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef RECURVE_CPU_VECTOR_MATH_INL_H
#undef RECURVE_CPU_VECTOR_MATH_INL_H
#else
#define RECURVE_CPU_VECTOR_MATH_INL_H
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;  // as wide as the instruction set has them
using OneFloat = hn::CappedTag<float, 1>;

// Calls body(d, index) along [0, count): with Floats while a whole vector is left, with OneFloat
// after that. Both compute the same, so a body is written once.
template <class Body>
HWY_INLINE void for_lanes(int64_t count, Body body) {
  constexpr int64_t kLanes = hn::MaxLanes(Floats());
  int64_t index = 0;
  for (; index + kLanes <= count; index += kLanes) body(Floats(), index);
  for (; index < count; ++index) body(OneFloat(), index);
}

// The sum of term(d, index) over [0, count), lane by lane and then over the lanes.
template <class Term>
HWY_INLINE float sum_over(int64_t count, Term term) {
  constexpr int64_t kLanes = hn::MaxLanes(Floats());
  const Floats d;
  auto even = hn::Zero(d), odd = hn::Zero(d);
  int64_t index = 0;
  for (; index + 2 * kLanes <= count; index += 2 * kLanes) {
    even = hn::Add(even, term(d, index));
    odd = hn::Add(odd, term(d, index + kLanes));
  }
  if (index + kLanes <= count) {
    even = hn::Add(even, term(d, index));
    index += kLanes;
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
  for (; index < count; ++index) sum += hn::GetLane(term(OneFloat(), index));
  return sum;
}

// The integer next to x, in the form in which p 2^n is fastest. Of NaN and what no integer holds
// any.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
template <class D>
HWY_INLINE hn::Vec<D> exponent_near(D, hn::Vec<D> x) {
  return hn::Round(x);
}
template <class D>
HWY_INLINE hn::Vec<D> exponent_value(D, hn::Vec<D> n) {
  return n;
}
// p 2^n rounded once, for every n.
template <class D>
HWY_INLINE hn::Vec<D> scaled(D d, hn::Vec<D> p, hn::Vec<D> n) {
  if constexpr (hn::MaxLanes(d) == 16) return {_mm512_scalef_ps(p.raw, n.raw)};
  if constexpr (hn::MaxLanes(d) <= 4) return {_mm_scalef_ps(p.raw, n.raw)};
}
template <class D>
HWY_INLINE hn::Vec<D> scaled_to_normal(D d, hn::Vec<D> p, hn::Vec<D> n) {
  return scaled(d, p, n);
}
#else
template <class D>
using Exponent = hn::Vec<hn::RebindToSigned<D> >;
template <class D>
HWY_INLINE Exponent<D> exponent_near(D, hn::Vec<D> x) {
  return hn::NearestInt(x);
}
template <class D>
HWY_INLINE hn::Vec<D> exponent_value(D d, Exponent<D> n) {
  return hn::ConvertTo(d, n);
}
// 2^n for n in [-126, 127].
template <class D>
HWY_INLINE hn::Vec<D> power_of_two(D d, Exponent<D> n) {
  const hn::RebindToSigned<D> di;
  return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127))));
}
// p 2^n rounded once, for n in [-252, 254], which is more than one factor holds.
template <class D>
HWY_INLINE hn::Vec<D> scaled(D d, hn::Vec<D> p, Exponent<D> n) {
  const auto half = hn::ShiftRight<1>(n);
  return hn::Mul(hn::Mul(p, power_of_two(d, half)), power_of_two(d, hn::Sub(n, half)));
}
// The same where neither p nor p 2^n is subnormal or infinite.
template <class D>
HWY_INLINE hn::Vec<D> scaled_to_normal(D d, hn::Vec<D> p, Exponent<D> n) {
  const hn::RebindToSigned<D> di;
  return hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(n)));
}
#endif

// exp(x) / 2^n for the n next to x / ln 2, x being bounded: x = n ln 2 + r, then a polynomial in r
// fitted on |r| <= ln(2)/2 with relative error 3e-9.
template <class D, class N>
HWY_INLINE hn::Vec<D> exp_of_rest(D d, hn::Vec<D> x, N n) {
  const auto whole = exponent_value(d, n);
  auto r = hn::NegMulAdd(whole, hn::Set(d, 0x1.62e4p-1f), x);  // ln 2, upper bits
  r = hn::NegMulAdd(whole, hn::Set(d, 0x1.7f7d1cp-20f), r);    // ln 2, the rest
  auto p = hn::MulAdd(r, hn::Set(d, 0x1.6db4e4p-10f), hn::Set(d, 0x1.123be0p-7f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.55545ep-5f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.55548ep-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
  return hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), hn::Set(d, 1.0f));
}

template <class D>
HWY_INLINE auto exponent_of_exp(D d, hn::Vec<D> x) {
  return exponent_near(d, hn::Mul(x, hn::Set(d, 1.44269504f)));
}

// Within 1 ulp, subnormal results included.
template <class D>
HWY_INLINE hn::Vec<D> exp(D d, hn::Vec<D> x) {
  const auto bounded = hn::Min(hn::Max(x, hn::Set(d, -104.0f)), hn::Set(d, 89.0f));
  const auto n = exponent_of_exp(d, bounded);
  return hn::IfThenElse(hn::IsNaN(x), x, scaled(d, exp_of_rest(d, bounded, n), n));
}

// exp(x) of x that is not positive, what a state keeps of itself: likewise, but results that would
// be subnormal are zeros, which spares some operations.
template <class D>
HWY_INLINE hn::Vec<D> exp_of_decay(D d, hn::Vec<D> x) {
  const auto least = hn::Set(d, -87.0f);
  const auto bounded = hn::IfThenElse(hn::Lt(x, least), least, x);  // NaN stays
  const auto n = exponent_of_exp(d, bounded);
  const auto result = scaled_to_normal(d, exp_of_rest(d, bounded, n), n);
  return hn::IfThenZeroElse(hn::Lt(x, least), result);
}

// Within 3 ulp.
template <class D>
HWY_INLINE hn::Vec<D> sigmoid(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, 1.0f);
  return hn::Div(one, hn::Add(one, exp(d, hn::Neg(x))));
}

template <class D>
HWY_INLINE hn::Vec<D> silu(D d, hn::Vec<D> x) {
  return hn::Mul(x, sigmoid(d, x));
}

// Within 4 ulp: x above 20, else log(1 + exp(x)).
template <class D>
HWY_INLINE hn::Vec<D> softplus(D d, hn::Vec<D> x) {
  const auto limit = hn::Set(d, 20.0f);
  const auto curved = hn::Log1p(d, exp(d, hn::Min(x, limit)));
  const auto result = hn::IfThenElse(hn::Gt(x, limit), x, curved);
  return hn::IfThenElse(hn::IsNaN(x), x, result);
}

// Within 3 ulp: below 0.625 a polynomial x + x^3 p(x^2) fitted with relative error 2e-9, above it
// 1 - 2 / (exp(2 |x|) + 1).
template <class D>
HWY_INLINE hn::Vec<D> tanh(D d, hn::Vec<D> x) {
  const auto size = hn::Abs(x);
  const auto z = hn::Mul(x, x);
  auto p = hn::MulAdd(z, hn::Set(d, -0.005717037f), hn::Set(d, 0.020650579f));
  p = hn::MulAdd(p, z, hn::Set(d, -0.053743497f));
  p = hn::MulAdd(p, z, hn::Set(d, 0.13331491f));
  p = hn::MulAdd(p, z, hn::Set(d, -0.33333284f));
  const auto small = hn::MulAdd(hn::Mul(p, z), x, x);
  const auto one = hn::Set(d, 1.0f), two = hn::Set(d, 2.0f);
  const auto e = exp(d, hn::Add(size, size));
  const auto large = hn::CopySign(hn::Sub(one, hn::Div(two, hn::Add(e, one))), x);
  return hn::IfThenElse(hn::Ge(size, hn::Set(d, 0.625f)), large, small);
}

// Within 4 ulp: log of sigmoid(x). The argument of exp is never positive.
template <class D>
HWY_INLINE hn::Vec<D> log_sigmoid(D d, hn::Vec<D> x) {
  const auto rest = hn::Log1p(d, exp(d, hn::Neg(hn::Abs(x))));
  const auto result = hn::Sub(hn::Min(x, hn::Zero(d)), rest);
  return hn::IfThenElse(hn::IsNaN(x), x, result);
}

// Within 8 ulp: x Phi(x) = x / 2 erfc(-x / sqrt(2)). With z = |x| / sqrt(2), erfc(z) is exp(-z^2)
// times a polynomial in t = 1 / (1 + z / 2) fitted for z up to 10, where nothing is left of it,
// with relative error 5e-8.
template <class D>
HWY_INLINE hn::Vec<D> gelu(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, 1.0f), half = hn::Set(d, 0.5f);
  const auto t = hn::Div(one, hn::MulAdd(hn::Abs(x), hn::Set(d, 0.35355339f), one));
  auto p = hn::MulAdd(t, hn::Set(d, -0.0590666011f), hn::Set(d, 0.284563959f));
  p = hn::MulAdd(p, t, hn::Set(d, -0.487178028f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.278042972f));
  p = hn::MulAdd(p, t, hn::Set(d, -0.026609445f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.202680141f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.243105441f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.282375067f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.282086432f));
  // x^2 in two parts, as exp makes its rounding a relative error.
  const auto square = hn::Mul(x, x), rounding = hn::MulSub(x, x, square);
  const auto bell =
      hn::Mul(exp(d, hn::Mul(square, hn::Neg(half))), hn::NegMulAdd(half, rounding, one));
  const auto tail = hn::Mul(hn::Mul(p, t), bell);  // erfc(z)
  const auto twice = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(hn::Set(d, 2.0f), tail));
  const auto result = hn::Mul(hn::Mul(half, x), twice);
  // Far out nothing is left of the tail, and the square may overflow.
  const auto limit = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Mul(x, hn::Zero(d)), x);
  return hn::IfThenElse(hn::Gt(hn::Abs(x), hn::Set(d, 15.0f)), limit, result);
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard by target
