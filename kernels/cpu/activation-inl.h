// The functions of ops/activation.h on vectors, compiled once for each instruction set.
#if defined(RECURVE_CPU_ACTIVATION_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef RECURVE_CPU_ACTIVATION_INL_H
#undef RECURVE_CPU_ACTIVATION_INL_H
#else
#define RECURVE_CPU_ACTIVATION_INL_H
#endif

#include <type_traits>

#include "kernels/cpu/vector_math-inl.h"
#include "kernels/ops/activation.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

template <Activation F, class D>
HWY_INLINE hn::Vec<D> activate(D d, hn::Vec<D> x) {
  if constexpr (F == Activation::kIdentity) {
    return x;
  } else if constexpr (F == Activation::kSilu) {
    return silu(d, x);
  } else if constexpr (F == Activation::kSigmoid) {
    return sigmoid(d, x);
  } else if constexpr (F == Activation::kLogSigmoid) {
    return log_sigmoid(d, x);
  } else if constexpr (F == Activation::kTanh) {
    return tanh(d, x);
  } else if constexpr (F == Activation::kRelu) {
    return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x);
  } else if constexpr (F == Activation::kEluPlusOne) {
    const auto above = hn::Add(x, hn::Set(d, 1.0f));
    return hn::IfThenElse(hn::Gt(x, hn::Zero(d)), above, exp(d, x));
  } else if constexpr (F == Activation::kGelu) {
    return gelu(d, x);
  } else if constexpr (F == Activation::kSquaredRelu) {
    const auto positive = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x);
    return hn::Mul(positive, positive);
  } else {
    static_assert(F == Activation::kGeluTanh);  // x sigmoid(2 z), where 0.5 (1 + tanh(z)) is meant
    const auto square = hn::Mul(x, x);
    const auto twice = hn::MulAdd(square, hn::Set(d, 0.071354816f), hn::Set(d, 1.5957691f));
    return hn::Mul(x, sigmoid(d, hn::Mul(x, twice)));
  }
}

// Calls visit(F) with the function as a type, std::integral_constant<Activation, f>.
template <class Visit>
HWY_INLINE void with_activation(Activation f, Visit visit) {
  switch (f) {
    case Activation::kIdentity:
      return visit(std::integral_constant<Activation, Activation::kIdentity>());
    case Activation::kSilu:
      return visit(std::integral_constant<Activation, Activation::kSilu>());
    case Activation::kSigmoid:
      return visit(std::integral_constant<Activation, Activation::kSigmoid>());
    case Activation::kLogSigmoid:
      return visit(std::integral_constant<Activation, Activation::kLogSigmoid>());
    case Activation::kTanh:
      return visit(std::integral_constant<Activation, Activation::kTanh>());
    case Activation::kRelu:
      return visit(std::integral_constant<Activation, Activation::kRelu>());
    case Activation::kEluPlusOne:
      return visit(std::integral_constant<Activation, Activation::kEluPlusOne>());
    case Activation::kGelu:
      return visit(std::integral_constant<Activation, Activation::kGelu>());
    case Activation::kSquaredRelu:
      return visit(std::integral_constant<Activation, Activation::kSquaredRelu>());
    case Activation::kGeluTanh:
      return visit(std::integral_constant<Activation, Activation::kGeluTanh>());
  }
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard by target
