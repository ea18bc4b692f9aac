// Sums of two arrays, to the bit.
#include <gtest/gtest.h>

#include "tests/support/kernels/row_values.h"

namespace recurve::testing::add_test {

Floats run_add(KernelDevice& device, const Floats& a, const Floats& b, bool in_place = false) {
  const auto left = device.array(a), right = device.array(b);
  const auto out = device.floats(a.size());
  const auto& y = in_place ? left : out;
  device.kernels().add({static_cast<int64_t>(a.size()), left.data(), right.data(), y.data()},
                       *device.stream);
  EXPECT_TRUE(y.guards_intact());
  return y.read();
}

void expect_adds(KernelDevice& device) {
  std::mt19937_64 random(13);
  for (const size_t count : {1, 17, 1000, 100003}) {
    const Floats a = normal_floats(random, count), b = normal_floats(random, count);
    Floats wanted;
    for (size_t i = 0; i < count; ++i) wanted.push_back(a[i] + b[i]);
    EXPECT_TRUE(bit_equal(run_add(device, a, b), wanted));
    EXPECT_TRUE(bit_equal(run_add(device, a, b, true), wanted));
  }
}

TEST(AddReference, Adds) {
  KernelDevice device("reference");
  expect_adds(device);
}

class AddTest : public DeviceTest {};

TEST_P(AddTest, Adds) {
  KernelDevice device = make_device();
  expect_adds(device);
}

RECURVE_ON_EACH_DEVICE(AddTest);
RECURVE_ON_CUDA(AddTest);

}  // namespace recurve::testing::add_test
