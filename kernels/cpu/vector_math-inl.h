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

// Vectors that are computed side by side: what one waits for, the others fill.
inline constexpr int kTogether = 4;

// Calls body.operator()<COUNT>(d, index) along [0, count): for COUNT vectors while so many are
// left, and for one at a time after that, as for_lanes() does.
template <int COUNT, class Body>
HWY_INLINE void for_several(int64_t count, Body body) {
  constexpr int64_t kLanes = COUNT * hn::MaxLanes(Floats());
  int64_t index = 0;
  for (; index + kLanes <= count; index += kLanes) {
    body.template operator()<COUNT>(Floats(), index);
  }
  for_lanes(count - index,
            [&](auto d, int64_t rest) HWY_ATTR { body.template operator()<1>(d, index + rest); });
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

// What a number of at most 2^22 is added to for the integer next to it: the last bit of numbers of
// this size is a one.
inline constexpr float kToInteger = 0x1.8p23f;

// ln 2 in two parts: an integer of three digits times the first is exact.
inline constexpr float kUpperLn2 = 0x1.62e4p-1f, kRestOfLn2 = 0x1.7f7d1cp-20f;

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
// p 2^n rounded once, for every n. shifted: n + kToInteger.
template <class D>
HWY_INLINE hn::Vec<D> scaled(D d, hn::Vec<D> p, hn::Vec<D> n, hn::Vec<D>) {
  if constexpr (hn::MaxLanes(d) == 16) return {_mm512_scalef_ps(p.raw, n.raw)};
  if constexpr (hn::MaxLanes(d) <= 4) return {_mm_scalef_ps(p.raw, n.raw)};
}
// The same for p in [0.5, 2] and n that is not positive, but zero where p 2^n may be subnormal. Of
// n that is no integer it is the one below that counts.
template <class D>
HWY_INLINE hn::Vec<D> scaled_to_normal_or_zero(D d, hn::Vec<D> p, hn::Vec<D> n, hn::Vec<D>) {
  if constexpr (hn::MaxLanes(d) == 16) {
    const auto normal = _mm512_cmp_ps_mask(n.raw, _mm512_set1_ps(-125.0f), _CMP_NLT_UQ);
    return {_mm512_maskz_scalef_ps(normal, p.raw, n.raw)};
  }
  if constexpr (hn::MaxLanes(d) <= 4) {
    const auto normal = _mm_cmp_ps_mask(n.raw, _mm_set1_ps(-125.0f), _CMP_NLT_UQ);
    return {_mm_maskz_scalef_ps(normal, p.raw, n.raw)};
  }
}
#else
// 2^n for n in [-126, 127].
template <class D>
HWY_INLINE hn::Vec<D> power_of_two(D d, hn::Vec<hn::RebindToSigned<D> > n) {
  const hn::RebindToSigned<D> di;
  return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127))));
}
// p 2^n rounded once, for n in [-252, 254], which is more than one factor holds. shifted: n +
// kToInteger.
template <class D>
HWY_INLINE hn::Vec<D> scaled(D d, hn::Vec<D> p, hn::Vec<D>, hn::Vec<D> shifted) {
  const hn::RebindToSigned<D> di;
  const auto n = hn::Sub(hn::BitCast(di, shifted), hn::BitCast(di, hn::Set(d, kToInteger)));
  const auto half = hn::ShiftRight<1>(n);
  return hn::Mul(hn::Mul(p, power_of_two(d, half)), power_of_two(d, hn::Sub(n, half)));
}
// The same for p in [0.5, 2] and n that is not positive, but zero where p 2^n may be subnormal.
template <class D>
HWY_INLINE hn::Vec<D> scaled_to_normal_or_zero(D d, hn::Vec<D> p, hn::Vec<D> n,
                                               hn::Vec<D> shifted) {
  const hn::RebindToSigned<D> di;
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  const auto power = hn::BitCast(d, hn::Add(exponent, hn::BitCast(di, hn::Set(d, 1.0f))));
  return hn::IfThenZeroElse(hn::Lt(n, hn::Set(d, -125.0f)), hn::Mul(p, power));
}
#endif

// Functions of COUNT vectors, in place: that of one waits for itself at every step, where those of
// several fill the processor's units.

template <int COUNT, class Step>
HWY_INLINE void each(Step step) {
  HWY_UNROLL(8)
  for (int i = 0; i < COUNT; ++i) step(i);
}

// x[i] = 1 + x[i] (c[0] + x[i] (c[1] + ...)).
template <int COUNT, class D>
HWY_INLINE void powers_of_rests(D d, const float (&c)[6], hn::Vec<D> (&x)[COUNT]) {
  hn::Vec<D> p[COUNT];
  each<COUNT>([&](int i) HWY_ATTR { p[i] = hn::MulAdd(x[i], hn::Set(d, c[5]), hn::Set(d, c[4])); });
  HWY_UNROLL(4)
  for (int k = 3; k >= 0; --k) {
    each<COUNT>([&](int i) HWY_ATTR { p[i] = hn::MulAdd(p[i], x[i], hn::Set(d, c[k])); });
  }
  each<COUNT>([&](int i) HWY_ATTR { x[i] = hn::MulAdd(p[i], x[i], hn::Set(d, 1.0f)); });
}

// x[i] = 2^(a x[i]) of products that are not positive, what states keep of themselves: within 2 ulp
// of what the product is before it is rounded, but zero where that may be subnormal, which spares
// some operations.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
// 2^(j / 32), which two registers hold.
alignas(64) inline constexpr float kPowers[32] = {
    0x1p+0f,        0x1.059b0ep+0f, 0x1.0b5586p+0f, 0x1.11301ep+0f, 0x1.172b84p+0f, 0x1.1d4874p+0f,
    0x1.2387a6p+0f, 0x1.29e9ep+0f,  0x1.306fep+0f,  0x1.371a74p+0f, 0x1.3dea64p+0f, 0x1.44e086p+0f,
    0x1.4bfdaep+0f, 0x1.5342b6p+0f, 0x1.5ab07ep+0f, 0x1.6247ecp+0f, 0x1.6a09e6p+0f, 0x1.71f75ep+0f,
    0x1.7a1148p+0f, 0x1.82589ap+0f, 0x1.8ace54p+0f, 0x1.93737cp+0f, 0x1.9c4918p+0f, 0x1.a5503cp+0f,
    0x1.ae89fap+0f, 0x1.b7f77p+0f,  0x1.c199bep+0f, 0x1.cb720ep+0f, 0x1.d5818ep+0f, 0x1.dfc974p+0f,
    0x1.ea4afap+0f, 0x1.f50766p+0f};
// The one for the last five bits of what a product was added to.
template <class D>
HWY_INLINE hn::Vec<D> power_of_32nds(D d, hn::Vec<D> shifted) {
  const __m512 lower = _mm512_load_ps(kPowers), upper = _mm512_load_ps(kPowers + 16);
  if constexpr (hn::MaxLanes(d) == 16) {
    return {_mm512_permutex2var_ps(lower, _mm512_castps_si512(shifted.raw), upper)};
  } else {
    const __m512i index = _mm512_castsi128_si512(_mm_castps_si128(shifted.raw));
    return {_mm512_castps512_ps128(_mm512_permutex2var_ps(lower, index, upper))};
  }
}
// For the 32nd n next to the product, 2^n is a power of two times one of 32 numbers; of what is
// left, at most 1/64, a polynomial of second degree has relative error 6e-8.
template <int COUNT, class D>
HWY_INLINE void exp2_of_products(D d, hn::Vec<D> a, hn::Vec<D> (&x)[COUNT]) {
  const auto to_32nd = hn::Set(d, kToInteger / 32);
  hn::Vec<D> shifted[COUNT], n[COUNT], p[COUNT];
  each<COUNT>([&](int i) HWY_ATTR { shifted[i] = hn::MulAdd(a, x[i], to_32nd); });
  each<COUNT>([&](int i) HWY_ATTR { n[i] = hn::Sub(shifted[i], to_32nd); });
  each<COUNT>([&](int i) HWY_ATTR { x[i] = hn::MulSub(a, x[i], n[i]); });
  each<COUNT>([&](int i) HWY_ATTR { shifted[i] = power_of_32nds(d, shifted[i]); });
  each<COUNT>([&](int i) HWY_ATTR {
    p[i] = hn::MulAdd(x[i], hn::Set(d, 0x1.ebfc1p-3f), hn::Set(d, 0x1.62e584p-1f));
  });
  each<COUNT>([&](int i) HWY_ATTR { x[i] = hn::Mul(x[i], shifted[i]); });
  each<COUNT>([&](int i) HWY_ATTR { x[i] = hn::MulAdd(x[i], p[i], shifted[i]); });
  each<COUNT>([&](int i) HWY_ATTR { x[i] = scaled_to_normal_or_zero(d, x[i], n[i], n[i]); });
}
#else
template <int COUNT, class D>
HWY_INLINE void exp2_of_products(D d, hn::Vec<D> a, hn::Vec<D> (&x)[COUNT]) {
  constexpr float kPolynomial[] = {0x1.62e43p-1f, 0x1.ebfbdcp-3f, 0x1.c6af7cp-5f,
                                   0x1.3b2dep-7f, 0x1.5f083p-10f, 0x1.416b5ep-13f};
  const auto to_integer = hn::Set(d, kToInteger);
  hn::Vec<D> shifted[COUNT], n[COUNT];
  each<COUNT>([&](int i) HWY_ATTR { shifted[i] = hn::MulAdd(a, x[i], to_integer); });
  each<COUNT>([&](int i) HWY_ATTR { n[i] = hn::Sub(shifted[i], to_integer); });
  each<COUNT>([&](int i) HWY_ATTR { x[i] = hn::MulSub(a, x[i], n[i]); });
  powers_of_rests(d, kPolynomial, x);  // of |x| <= 1/2, with relative error 3e-9
  each<COUNT>([&](int i) HWY_ATTR { x[i] = scaled_to_normal_or_zero(d, x[i], n[i], shifted[i]); });
}
#endif

// x[i] = exp(x[i]) of numbers in [-104, 89], within 1 ulp, subnormal results included: for the n
// next to x / ln 2, x = n ln 2 + r, then a polynomial in r fitted on |r| <= ln(2)/2 with relative
// error 3e-9.
template <int COUNT, class D>
HWY_INLINE void exps_of_bounded(D d, hn::Vec<D> (&x)[COUNT]) {
  constexpr float kPolynomial[] = {1.0f,           0.5f,           0x1.55548ep-3f,
                                   0x1.55545ep-5f, 0x1.123be0p-7f, 0x1.6db4e4p-10f};
  const auto to_integer = hn::Set(d, kToInteger);
  hn::Vec<D> shifted[COUNT], n[COUNT];
  each<COUNT>([&](int i)
                  HWY_ATTR { shifted[i] = hn::MulAdd(x[i], hn::Set(d, 1.44269504f), to_integer); });
  each<COUNT>([&](int i) HWY_ATTR { n[i] = hn::Sub(shifted[i], to_integer); });
  each<COUNT>([&](int i) HWY_ATTR { x[i] = hn::NegMulAdd(n[i], hn::Set(d, kUpperLn2), x[i]); });
  each<COUNT>([&](int i) HWY_ATTR { x[i] = hn::NegMulAdd(n[i], hn::Set(d, kRestOfLn2), x[i]); });
  powers_of_rests(d, kPolynomial, x);
  each<COUNT>([&](int i) HWY_ATTR { x[i] = scaled(d, x[i], n[i], shifted[i]); });
}

// At least `least`; NaN stays.
template <class D>
HWY_INLINE hn::Vec<D> at_least(D d, float least, hn::Vec<D> x) {
  const auto bound = hn::Set(d, least);
  return hn::IfThenElse(hn::Lt(x, bound), bound, x);
}

// x[i] = exp(-|x[i]|), within 1 ulp, subnormal results included.
template <int COUNT, class D>
HWY_INLINE void exps_of_negatives(D d, hn::Vec<D> (&x)[COUNT]) {
  each<COUNT>([&](int i) HWY_ATTR { x[i] = at_least(d, -104.0f, hn::Neg(hn::Abs(x[i]))); });
  exps_of_bounded(d, x);
}

// Within 1 ulp, subnormal results included.
template <class D>
HWY_INLINE hn::Vec<D> exp(D d, hn::Vec<D> x) {
  const auto most = hn::Set(d, 89.0f);
  hn::Vec<D> one[] = {at_least(d, -104.0f, hn::IfThenElse(hn::Gt(x, most), most, x))};
  exps_of_bounded(d, one);
  return one[0];
}

// Within 3 ulp, but zero where exp(-x) overflows.
template <int COUNT, class D>
HWY_INLINE void sigmoids(D d, hn::Vec<D> (&x)[COUNT]) {
  const auto one = hn::Set(d, 1.0f);
  hn::Vec<D> u[COUNT];
  each<COUNT>([&](int i) HWY_ATTR { u[i] = x[i]; });
  exps_of_negatives(d, u);
  each<COUNT>([&](int i) HWY_ATTR {
    const auto above = hn::IfThenElse(hn::Lt(x[i], hn::Zero(d)), u[i], one);
    const auto found = hn::Div(above, hn::Add(u[i], one));
    x[i] = hn::IfThenZeroElse(hn::Lt(x[i], hn::Set(d, -88.722839f)), found);
  });
}

template <int COUNT, class D>
HWY_INLINE void silus(D d, hn::Vec<D> (&x)[COUNT]) {
  hn::Vec<D> gate[COUNT];
  each<COUNT>([&](int i) HWY_ATTR { gate[i] = x[i]; });
  sigmoids(d, gate);
  each<COUNT>([&](int i) HWY_ATTR { x[i] = hn::Mul(x[i], gate[i]); });
}

// x[i] = log(1 + exp(-|x[i]|)): with u = exp(-|x|) that is 2 artanh(r), r = u / (2 + u), at most
// 1/3, which is r times a polynomial in r^2 fitted with relative error 5e-9.
template <int COUNT, class D>
HWY_INLINE void rests_of_softplus(D d, hn::Vec<D> (&x)[COUNT]) {
  hn::Vec<D> square[COUNT], p[COUNT];
  exps_of_negatives(d, x);
  each<COUNT>([&](int i) HWY_ATTR { x[i] = hn::Div(x[i], hn::Add(x[i], hn::Set(d, 2.0f))); });
  each<COUNT>([&](int i) HWY_ATTR { square[i] = hn::Mul(x[i], x[i]); });
  each<COUNT>([&](int i) HWY_ATTR {
    p[i] = hn::MulAdd(square[i], hn::Set(d, 0x1.1eca06p-2f), hn::Set(d, 0x1.1ec042p-2f));
  });
  const auto horner = [&](float c) HWY_ATTR {
    each<COUNT>([&](int i) HWY_ATTR { p[i] = hn::MulAdd(p[i], square[i], hn::Set(d, c)); });
  };
  horner(0x1.99d1ccp-2f);
  horner(0x1.555502p-1f);
  horner(2.0f);
  each<COUNT>([&](int i) HWY_ATTR { x[i] = hn::Mul(x[i], p[i]); });
}

// Within 4 ulp: log(1 + exp(x)).
template <int COUNT, class D>
HWY_INLINE void softpluses(D d, hn::Vec<D> (&x)[COUNT]) {
  hn::Vec<D> rest[COUNT];
  each<COUNT>([&](int i) HWY_ATTR { rest[i] = x[i]; });
  rests_of_softplus(d, rest);
  each<COUNT>([&](int i) HWY_ATTR { x[i] = hn::Add(hn::Max(hn::Zero(d), x[i]), rest[i]); });
}

// The same of one vector.

template <class D>
HWY_INLINE hn::Vec<D> sigmoid(D d, hn::Vec<D> x) {
  hn::Vec<D> one[] = {x};
  sigmoids(d, one);
  return one[0];
}

template <class D>
HWY_INLINE hn::Vec<D> silu(D d, hn::Vec<D> x) {
  return hn::Mul(x, sigmoid(d, x));
}

template <class D>
HWY_INLINE hn::Vec<D> softplus(D d, hn::Vec<D> x) {
  hn::Vec<D> one[] = {x};
  softpluses(d, one);
  return one[0];
}

// Within 4 ulp: log of sigmoid(x).
template <class D>
HWY_INLINE hn::Vec<D> log_sigmoid(D d, hn::Vec<D> x) {
  return hn::Neg(softplus(d, hn::Neg(x)));
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
