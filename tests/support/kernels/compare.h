#pragma once
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

namespace recurve::testing {

inline double square(double x) { return x * x; }

// How far apart two computations of the same may be. A value is close when it differs by at most
// absolute + relative * |wanted|; all of them together when 1 - cosine is at most `angle` as well,
// which sees a small error that all values share.
struct Tolerance {
  double absolute = 0;
  double relative = 0;
  double angle = 1e-6;
};

namespace detail {

inline bool both_special(float found, float wanted) {
  if (std::isnan(wanted)) return std::isnan(found);
  return std::isinf(wanted) && found == wanted;
}

// 1 - cosine of the angle between them, over the values that are finite in both.
inline double angle_between(std::span<const float> found, std::span<const float> wanted) {
  double dot = 0, found_squared = 0, wanted_squared = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double a = found[i], b = wanted[i];
    if (!std::isfinite(a) || !std::isfinite(b)) continue;
    dot += a * b;
    found_squared += a * a;
    wanted_squared += b * b;
  }
  if (found_squared == 0 || wanted_squared == 0) return found_squared == wanted_squared ? 0 : 1;
  return 1 - dot / std::sqrt(found_squared * wanted_squared);
}

}  // namespace detail

// NaN and infinities must stand in equal places.
inline ::testing::AssertionResult close(std::span<const float> found, std::span<const float> wanted,
                                        Tolerance tolerance) {
  if (found.size() != wanted.size()) {
    return ::testing::AssertionFailure()
           << found.size() << " values found, " << wanted.size() << " wanted";
  }
  for (size_t i = 0; i < found.size(); ++i) {
    if (detail::both_special(found[i], wanted[i])) continue;
    const double allowed =
        tolerance.absolute + tolerance.relative * std::fabs(static_cast<double>(wanted[i]));
    const double difference = std::fabs(static_cast<double>(found[i]) - wanted[i]);
    if (!(difference <= allowed) || std::isinf(wanted[i])) {
      return ::testing::AssertionFailure()
             << "at " << i << " of " << found.size() << ": found " << found[i] << ", wanted "
             << wanted[i] << ", apart by " << difference << ", allowed " << allowed;
    }
  }
  const double angle = detail::angle_between(found, wanted);
  if (!(angle <= tolerance.angle)) {
    return ::testing::AssertionFailure()
           << "1 - cosine is " << angle << ", allowed " << tolerance.angle;
  }
  return ::testing::AssertionSuccess();
}

// The same bits; NaN equals NaN.
inline ::testing::AssertionResult bit_equal(std::span<const float> found,
                                            std::span<const float> wanted) {
  if (found.size() != wanted.size()) {
    return ::testing::AssertionFailure()
           << found.size() << " values found, " << wanted.size() << " wanted";
  }
  for (size_t i = 0; i < found.size(); ++i) {
    if (std::isnan(found[i]) && std::isnan(wanted[i])) continue;
    if (std::bit_cast<uint32_t>(found[i]) != std::bit_cast<uint32_t>(wanted[i])) {
      return ::testing::AssertionFailure() << "at " << i << " of " << found.size() << ": found "
                                           << std::hexfloat << found[i] << ", wanted " << wanted[i];
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace recurve::testing
