#pragma once
#include <deque>
#include <vector>

#include "kernels/ops/lora.h"
#include "tests/support/kernels/kernel_device.h"

namespace recurve::testing {

// One part of an adapter in a device's memory, and its values.
struct TestPart {
  TestPart(KernelDevice& device, int64_t r, int64_t first, int64_t N, int64_t K, float scale,
           DType type, std::mt19937_64& random)
      : part{.r = r, .first = first, .N = N, .scale = scale, .dtype = type},
        A(rounded(normal_floats(random, r * K), type)),
        B(rounded(normal_floats(random, r * N), type)),
        A_array(device.array(stored(A, type))),
        B_array(device.array(stored(B, type))) {
    part.A = A_array.data();
    part.B = B_array.data();
  }

  LoraPart part;
  std::vector<float> A, B;
  DeviceArray<uint16_t> A_array, B_array;
};

// An adapter of a layer with the number `layer`.
struct TestAdapter {
  std::vector<TestPart> parts;
  std::vector<LoraPart> table;
  std::vector<std::span<const LoraPart>> layers;

  void finish(int32_t layer) {
    for (const TestPart& one : parts) table.push_back(one.part);
    layers.resize(static_cast<size_t>(layer) + 1);
    layers.back() = table;
  }
};

}  // namespace recurve::testing
