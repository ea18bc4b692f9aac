#pragma once
#include <cstdint>
#include <random>

namespace recurve::testing {

// Draws for tests that make their cases up. The same seed gives the same draws.
class RandomValues {
 public:
  explicit RandomValues(uint64_t seed) : generator_(seed) {}

  bool coin(double p) { return std::bernoulli_distribution(p)(generator_); }
  float real(float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(generator_);
  }
  int32_t integer(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(generator_);
  }

 protected:
  std::mt19937_64 generator_;
};

}  // namespace recurve::testing
