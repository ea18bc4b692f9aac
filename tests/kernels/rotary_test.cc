// Places in a session, and the rotary embedding of them: the reference against the formula in
// double, every device against the reference.
#include <gtest/gtest.h>

#include "tests/support/kernels/row_values.h"

namespace recurve::testing::rotary_test {

void expect_counting(KernelDevice& device) {
  const auto begin = device.array(std::vector<int32_t>{0, 3, 4, 306});
  const auto slot = device.array(std::vector<int32_t>{2, 0, 3});
  const auto count = device.array(std::vector<int32_t>{7, 1000, 0, 100});
  const auto position = device.array(std::vector<int32_t>(306, -1));
  device.kernels().positions(
      {{3, 306, 302, begin.data(), slot.data()}, count.data(), position.data()}, *device.stream);
  std::vector<int32_t> wanted = {0, 1, 2, 7};
  for (int t = 0; t < 302; ++t) wanted.push_back(100 + t);
  EXPECT_EQ(position.read(), wanted);
  EXPECT_EQ(count.read(), (std::vector<int32_t>{8, 1000, 3, 402}));
  EXPECT_TRUE(count.guards_intact() && position.guards_intact());
}

TEST(PositionsReference, CountOnWhereTheSessionStopped) {
  KernelDevice device("reference");
  expect_counting(device);
}

struct Rotary {
  int H, D;
  std::vector<int32_t> position;
  Floats x, frequency;
};

Rotary make_rotary(int H, int D, std::mt19937_64& random) {
  Rotary in{H, D, {0, 1, 77, 4096, 1000003, 2000000011}, {}, {}};
  in.x = normal_floats(random, in.position.size() * H * D);
  for (int j = 0; j < D / 2; ++j) {
    in.frequency.push_back(static_cast<float>(std::pow(10000.0, -2.0 * j / D)));
  }
  return in;
}

Floats run_rotary(KernelDevice& device, const Rotary& in) {
  const int rows = static_cast<int>(in.position.size()), width = in.H * in.D;
  const auto x = device.array(spread(in.x, width, 3));
  const auto position = device.array(in.position);
  const auto frequency = device.array(in.frequency);
  device.kernels().rotary(
      {rows, in.H, in.D, width + 3, position.data(), frequency.data(), x.data()}, *device.stream);
  EXPECT_TRUE(x.guards_intact());
  const Floats all = x.read();
  Floats values;
  for (int r = 0; r < rows; ++r) {
    values.insert(values.end(), all.begin() + r * (width + 3),
                  all.begin() + r * (width + 3) + width);
  }
  return values;
}

// As products of complex numbers; the angle in long double.
TEST(RotaryReference, IsTheFormula) {
  KernelDevice device("reference");
  std::mt19937_64 random(5);
  for (const auto& [H, D] : {std::pair{1, 2}, {3, 8}, {2, 66}}) {
    const Rotary in = make_rotary(H, D, random);
    Floats wanted = in.x;
    for (size_t at = 0; at < in.x.size(); ++at) {
      const int d = static_cast<int>(at) % D;
      if (d >= D / 2) continue;
      const size_t row = at / (static_cast<size_t>(H) * D);
      const long double angle =
          static_cast<long double>(in.position[row]) * static_cast<long double>(in.frequency[d]);
      const double c = static_cast<double>(std::cos(angle));
      const double s = static_cast<double>(std::sin(angle));
      wanted[at] = static_cast<float>(in.x[at] * c - in.x[at + D / 2] * s);
      wanted[at + D / 2] = static_cast<float>(in.x[at] * s + in.x[at + D / 2] * c);
    }
    // A sum of two products that may cancel.
    EXPECT_TRUE(close(run_rotary(device, in), wanted, {.absolute = 1e-6, .relative = 1e-6}));
  }
}

// Of a head of which only the first channels turn, the others stay as they are.
void expect_parts_of_heads_to_turn(KernelDevice& device) {
  std::mt19937_64 random(6);
  const int H = 3, D = 6, head = 10;
  const Rotary whole = make_rotary(H, D, random);
  const int rows = static_cast<int>(whole.position.size());
  Floats wide = normal_floats(random, static_cast<size_t>(rows) * H * head);
  for (size_t at = 0; at < whole.x.size(); ++at) wide[at / D * head + at % D] = whole.x[at];
  const auto x = device.array(wide);
  const auto position = device.array(whole.position);
  const auto frequency = device.array(whole.frequency);
  device.kernels().rotary({rows, H, D, H * head, position.data(), frequency.data(), x.data(), head},
                          *device.stream);
  const Floats turned = run_rotary(device, whole);
  for (size_t at = 0; at < turned.size(); ++at) wide[at / D * head + at % D] = turned[at];
  EXPECT_TRUE(bit_equal(x.read(), wide));
}

TEST(RotaryReference, TurnsPartsOfHeads) {
  KernelDevice device("reference");
  expect_parts_of_heads_to_turn(device);
}

class RotaryTest : public DeviceTest {};

TEST_P(RotaryTest, TurnsPartsOfHeads) {
  KernelDevice device = make_device();
  expect_parts_of_heads_to_turn(device);
}

TEST_P(RotaryTest, PositionsCountOnWhereTheSessionStopped) {
  KernelDevice device = make_device();
  expect_counting(device);
}

TEST_P(RotaryTest, MatchesTheReference) {
  KernelDevice reference("reference"), device = make_device();
  std::mt19937_64 random(8);
  for (const auto& [H, D] : {std::pair{1, 2}, {3, 8}, {2, 66}, {8, 256}}) {
    const Rotary in = make_rotary(H, D, random);
    const Floats found = run_rotary(device, in);
    EXPECT_TRUE(close(found, run_rotary(reference, in), {.absolute = 1e-6, .relative = 1e-6}));
    const size_t last = in.position.size() - 1;
    const Rotary one{
        H, D, {in.position[last]}, rows_from(in.x, H * D, static_cast<int>(last)), in.frequency};
    EXPECT_TRUE(bit_equal(run_rotary(device, one), std::span(found).last(one.x.size())));
  }
}

RECURVE_ON_EACH_DEVICE(RotaryTest);
RECURVE_ON_CUDA(RotaryTest);

}  // namespace recurve::testing::rotary_test
