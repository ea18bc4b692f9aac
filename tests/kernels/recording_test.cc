// Work recorded once gives, each time it is replayed, what queueing it anew would give.
#include <gtest/gtest.h>

#include "tests/support/kernels/compare.h"
#include "tests/support/kernels/kernel_device.h"

namespace recurve::testing::recording_test {

class RecordingTest : public DeviceTest {};

TEST_P(RecordingTest, ReplaysOpsAndCopiesOnWhatIsThereNow) {
  KernelDevice device = make_device();
  constexpr int kRows = 3, kD = 1024;
  constexpr size_t kCount = size_t{kRows} * kD;
  std::mt19937_64 random(1);
  const auto W = device.array(stored(normal_floats(random, size_t{kD} * kD, 0.03f), DType::kBF16));
  const auto w = device.array(normal_floats(random, kD));
  const auto x = device.floats(kCount), y = device.floats(kCount), z = device.floats(kCount);
  const auto work = [&] {
    device.kernels().rms_norm({kRows, kD, 1e-6f, x.data(), w.data(), y.data()}, *device.stream);
    device.kernels().linear(
        {.rows = kRows, .W = {DType::kBF16, kD, kD, W.data()}, .x = y.data(), .y = z.data()},
        *device.stream);
    device.backend->copy(y.data(), z.data(), kCount * sizeof(float), *device.stream);
  };
  const auto give = [&](const std::vector<float>& values) {
    device.backend->upload(x.data(), values.data(), kCount * sizeof(float), *device.stream);
  };

  give(normal_floats(random, kCount));
  work();
  const auto recording = device.backend->record(work, *device.stream);
  for (int round = 0; round < 3; ++round) {
    const std::vector<float> values = normal_floats(random, kCount);
    give(values);
    recording->replay(*device.stream);
    const std::vector<float> replayed = y.read();
    give(values);
    work();
    EXPECT_TRUE(bit_equal(replayed, y.read())) << "round " << round;
    EXPECT_TRUE(bit_equal(z.read(), y.read())) << "round " << round;
  }
}

RECURVE_ON_EACH_DEVICE(RecordingTest);
RECURVE_ON_CUDA(RecordingTest);

}  // namespace recurve::testing::recording_test
