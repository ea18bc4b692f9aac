#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "tests/support/kernels/device_array.h"
#include "tests/support/kernels/devices.h"
#include "tests/support/kernels/normal_floats.h"
#if RECURVE_CPU
#include "kernels/cpu/targets.h"
// After the choice of instruction sets.
#include <hwy/targets.h>
#endif

namespace recurve::testing {

// A backend with a stream, for the tests of its kernels.
struct KernelDevice {
  explicit KernelDevice(const std::string& device, int threads = 1)
      : backend(make_backend(device, threads)), stream(backend->make_stream()) {}

  template <typename T>
  DeviceArray<T> array(const std::vector<T>& values) {
    return DeviceArray<T>(*backend, *stream, values);
  }
  DeviceArray<float> floats(size_t count) { return DeviceArray<float>(*backend, *stream, count); }
  const Kernels& kernels() const { return backend->kernels(); }

  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
};

// A device whose kernels are compared with the reference.
struct DeviceUnderTest {
  std::string device;
  int threads;
  int64_t vectors;  // Highway's target, for the code of lesser machines; 0: the best of this one
  std::string name;
};

inline std::vector<DeviceUnderTest> devices_under_test() {
  std::vector<DeviceUnderTest> devices;
#if RECURVE_CPU
  devices.push_back({"cpu", 1, 0, "cpu1"});
  devices.push_back({"cpu", 2, 0, "cpu2"});
  devices.push_back({"cpu", 3, 0, "cpu3"});
  const std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  const int64_t best = *std::min_element(targets.begin(), targets.end());
  for (const int64_t target : targets) {
    if (target == best) continue;  // "cpu2" is that
    devices.push_back({"cpu", 2, target, std::string("cpu2_") + hwy::TargetName(target)});
  }
#endif
  return devices;
}

// One test on one of these devices, and with whatever else Param holds.
template <typename Param>
class DeviceTestWith : public ::testing::TestWithParam<Param> {
 protected:
  virtual const DeviceUnderTest& device_under_test() const = 0;
  void SetUp() override {
    const std::string why = why_unusable(device_under_test().device);
    if (!why.empty()) GTEST_SKIP() << why;
    use_vectors(device_under_test().vectors);
  }
  void TearDown() override { use_vectors(0); }
  KernelDevice make_device() const {
    return KernelDevice(device_under_test().device, device_under_test().threads);
  }

 private:
  static void use_vectors([[maybe_unused]] int64_t target) {
#if RECURVE_CPU
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
#endif
  }
};

class DeviceTest : public DeviceTestWith<DeviceUnderTest> {
 protected:
  const DeviceUnderTest& device_under_test() const override { return GetParam(); }
};

inline std::string name_of_device(const ::testing::TestParamInfo<DeviceUnderTest>& info) {
  return info.param.name;
}

// Runs a test on every device that is compared with the reference.
#define RECURVE_ON_EACH_DEVICE(suite)                                                 \
  GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(suite);                               \
  INSTANTIATE_TEST_SUITE_P(Devices, suite, ::testing::ValuesIn(devices_under_test()), \
                           name_of_device)

// Runs it on a GPU as well, for ops that have kernels there.
#if RECURVE_CUDA
#define RECURVE_ON_CUDA(suite) \
  INSTANTIATE_TEST_SUITE_P(    \
      Cuda, suite, ::testing::Values(DeviceUnderTest{"cuda:0", 1, 0, "cuda"}), name_of_device)
#else
#define RECURVE_ON_CUDA(suite) static_assert(true)
#endif

// Rounded to nearest even. NaN stays NaN.
inline uint16_t to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x0040);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline float from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Weights as they are stored in a matrix of the type.
inline std::vector<uint16_t> stored(const std::vector<float>& values, DType type) {
  if (type == DType::kF32) {
    std::vector<uint16_t> words(2 * values.size());
    if (!values.empty()) std::memcpy(words.data(), values.data(), values.size() * sizeof(float));
    return words;
  }
  std::vector<uint16_t> words(values.size());
  std::transform(values.begin(), values.end(), words.begin(), to_bf16);
  return words;
}

// The values a matrix of the type holds.
inline std::vector<float> rounded(std::vector<float> values, DType type) {
  if (type == DType::kBF16) {
    for (float& value : values) value = from_bf16(to_bf16(value));
  }
  return values;
}

}  // namespace recurve::testing
