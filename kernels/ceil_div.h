#pragma once

namespace recurve {

// a / b, rounded up. Of integers: a not negative, b positive.
template <typename A, typename B>
constexpr auto ceil_div(A a, B b) {
  return (a + b - 1) / b;
}

}  // namespace recurve
