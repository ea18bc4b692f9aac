#pragma once
#include <cstddef>
#include <random>
#include <vector>

namespace recurve::testing {

// Normal values for the inputs of tests, the same bits whatever compiles them: those of libstdc++'s
// std::normal_distribution<float>, which asks a logarithm of long double for each.
std::vector<float> normal_floats(std::mt19937_64& random, size_t count, float deviation = 1,
                                 float mean = 0);

}  // namespace recurve::testing
