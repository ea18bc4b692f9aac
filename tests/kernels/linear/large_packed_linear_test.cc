// Linear layers of packed weights that are so large that a GPU multiplies them in bf16: they have
// the bits of the layer in bf16 of the values that the format gives back, whatever else is asked
// for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/kernels/compare.h"
#include "tests/support/kernels/packed.h"

namespace recurve::testing::large_packed_linear_test {

struct Shape {
  int N, K;
  bool gated = false;  // with a gate and a cap; else a residual
  bool plain = false;  // with neither cap nor residual, which persistent blocks take
};

std::string describe(const WeightFormat& format, const Shape& s, int rows) {
  return std::string(format.name) + " rows " + std::to_string(rows) + " N " + std::to_string(s.N) +
         " K " + std::to_string(s.K) + (s.gated ? ", gated" : "") + (s.plain ? ", plain" : "");
}

constexpr int kMostRows = 300;

struct Inputs {
  Inputs(const Shape& s, uint64_t seed, int rows = kMostRows) {
    std::mt19937_64 random(seed);
    W = normal_floats(random, static_cast<size_t>(s.N) * s.K,
                      1 / std::sqrt(static_cast<float>(s.K)));
    x = normal_floats(random, static_cast<size_t>(rows) * s.K);
    bias = normal_floats(random, s.N);
    norm = normal_floats(random, s.K, 0.3f, 1);
    residual = normal_floats(random, static_cast<size_t>(rows) * s.N);
  }
  std::vector<float> W, x, bias, norm, residual;

  // Gives some rows a group of 64 columns whose scale kernels may treat apart: large, very small,
  // none.
  void make_uneven(const Shape& s) {
    for (int n = 0; n < s.N; ++n) {
      const float by = n % 61 == 7 ? 0x1p13f : n % 61 == 9 ? 0x1p-110f : n % 61 == 11 ? 0 : 1;
      const int begin = n / 61 * 64 % s.K, end = std::min(begin + 64, s.K);
      for (int k = begin; k < end; ++k) W[static_cast<size_t>(n) * s.K + k] *= by;
    }
  }
};

// The layer of some of the rows.
std::vector<float> run(KernelDevice& device, const Shape& s, const Inputs& in, const Matrix& W,
                       int rows, int first = 0) {
  const auto rows_of = [&](const std::vector<float>& values, int width) {
    const auto begin = values.begin() + static_cast<int64_t>(first) * width;
    return device.array(std::vector<float>(begin, begin + static_cast<int64_t>(rows) * width));
  };
  const auto x = rows_of(in.x, s.K), residual = rows_of(in.residual, s.N);
  const auto bias = device.array(in.bias), norm = device.array(in.norm);
  const auto y = device.floats(static_cast<size_t>(rows) * (s.gated ? s.N / 2 : s.N));
  device.kernels().linear({.rows = rows,
                           .W = W,
                           .bias = bias.data(),
                           .residual = s.gated || s.plain ? nullptr : residual.data(),
                           .x = x.data(),
                           .y = y.data(),
                           .norm = norm.data(),
                           .norm_eps = 1e-5f,
                           .swiglu = s.gated,
                           .soft_cap = s.gated && !s.plain ? 2.0f : 0.0f},
                          *device.stream);
  EXPECT_TRUE(y.guards_intact());
  return y.read();
}

class LargePackedLinearTest : public DeviceTest {};

// K in one to eight pieces and not in whole groups; outputs that end within a tile; all tilings.
TEST_P(LargePackedLinearTest, HasTheBitsOfTheLayerInBfloat) {
  KernelDevice device = make_device();
  for (const WeightFormat* format : packed_formats()) {
    for (const Shape& s : {Shape{2051, 2056},
                           {15400, 264},
                           {4096, 1032, true},
                           {1028, 4096},
                           {4104, 1160, true},
                           {520, 8200},
                           {1600, 2560},
                           {21888, 512, true},
                           {15400, 264, false, true},
                           {4096, 1032, true, true},
                           {1028, 4096, false, true},
                           {520, 8200, false, true}}) {
      Inputs in(s, 11);
      in.make_uneven(s);
      const Packed packed(*format, in.W, s.N, s.K);
      const DType type = packed.multiplied_as(device);
      const auto values = device.array(stored(packed.unpacked, type));
      const auto data = device.array(packed.data), scales = device.array(packed.scales);
      const Matrix W = packed.matrix(data.data(), scales.data());
      std::vector<float> most;
      for (const int rows : {kMostRows, 1, 5, 8, 9, 16, 17, 33, 64, 65, 128, 129, 256}) {
        const std::vector<float> found = run(device, s, in, W, rows);
        ASSERT_TRUE(bit_equal(found, run(device, s, in, {type, s.N, s.K, values.data()}, rows)))
            << describe(*format, s, rows);
        if (rows == kMostRows) most = found;
        ASSERT_TRUE(std::equal(found.begin(), found.end(), most.begin()))
            << describe(*format, s, rows) << " and more rows";
      }
      const int width = s.gated ? s.N / 2 : s.N;
      ASSERT_TRUE(bit_equal(run(device, s, in, W, 1, 77),
                            {most.begin() + 77 * width, most.begin() + 78 * width}))
          << describe(*format, s, 1) << ", row 77";
    }
  }
}

// So many rows that the matrix is unpacked first, in one to eight pieces of K.
TEST_P(LargePackedLinearTest, HasTheSameBitsWhereItIsUnpackedFirst) {
  KernelDevice device = make_device();
  constexpr int kRows = 1100, kFew = 70;
  for (const WeightFormat* format : packed_formats()) {
    for (const Shape& s : {Shape{15400, 264, false, true},
                           {4096, 1032, true, true},
                           {4104, 2056, false, true},
                           {1028, 4096, false, true},
                           {520, 8200, false, true}}) {
      Inputs in(s, 15, kRows);
      in.make_uneven(s);
      const Packed packed(*format, in.W, s.N, s.K);
      const DType type = packed.multiplied_as(device);
      const auto values = device.array(stored(packed.unpacked, type));
      const auto data = device.array(packed.data), scales = device.array(packed.scales);
      const Matrix W = packed.matrix(data.data(), scales.data());
      const std::vector<float> found = run(device, s, in, W, kRows);
      ASSERT_TRUE(bit_equal(found, run(device, s, in, {type, s.N, s.K, values.data()}, kRows)))
          << describe(*format, s, kRows);
      const std::vector<float> few = run(device, s, in, W, kFew);
      ASSERT_TRUE(std::equal(few.begin(), few.end(), found.begin()))
          << describe(*format, s, kFew) << " and more rows";
    }
  }
}

// Layers that are queued one after the other unpack to the same memory.
TEST_P(LargePackedLinearTest, UnpacksWhereTheLayerBeforeHasEnded) {
  KernelDevice device = make_device();
  constexpr int kRows = 1100, kLayers = 6;
  const Shape s{4104, 2056, false, true};
  const Inputs in(s, 16, kRows);
  for (const WeightFormat* format : packed_formats()) {
    const Packed packed(*format, in.W, s.N, s.K);
    const auto data = device.array(packed.data), scales = device.array(packed.scales);
    const auto x = device.array(in.x);
    // Layer i has the rows of the matrix from 8 i on, which are where vectors begin.
    const int outputs_of_layer = s.N - 8 * kLayers;
    const auto layer = [&](int i, float* y) {
      Matrix W = packed.matrix(data.data() + 8 * i * format->row_bytes(s.K),
                               scales.data() + 8 * i * format->row_scales(s.K));
      W.N = outputs_of_layer;
      device.kernels().linear({.rows = kRows, .W = W, .x = x.data(), .y = y}, *device.stream);
    };
    std::vector<decltype(device.floats(1))> outputs;
    for (int i = 0; i < kLayers; ++i) {
      outputs.push_back(device.floats(static_cast<size_t>(kRows) * outputs_of_layer));
    }
    for (int i = 0; i < kLayers; ++i) layer(i, outputs[i].data());
    for (int i = 0; i < kLayers; ++i) {
      const auto alone = device.floats(static_cast<size_t>(kRows) * outputs_of_layer);
      device.stream->wait();
      layer(i, alone.data());
      ASSERT_TRUE(bit_equal(outputs[i].read(), alone.read())) << format->name << ", layer " << i;
    }
  }
}

// Against the reference, which rounds nothing: sums of products of weights and activations that are
// each rounded by up to 2^-9 differ by 0.0024 on average here, and this is eight times that.
TEST_P(LargePackedLinearTest, MatchesTheReference) {
  KernelDevice reference("reference"), device = make_device();
  const Shape s{1026, 1096};
  const Inputs in(s, 12);
  for (const WeightFormat* format : packed_formats()) {
    const Packed packed(*format, in.W, s.N, s.K);
    const auto on = [&](KernelDevice& there) {
      const auto data = there.array(packed.data), scales = there.array(packed.scales);
      return run(there, s, in, packed.matrix(data.data(), scales.data()), 3);
    };
    ASSERT_TRUE(
        close(on(device), on(reference), {.absolute = 0.02, .relative = 0x1p-8, .angle = 2e-5}))
        << format->name;
  }
}

// A layer leaves a norm to the next one, which takes it, both packed.
TEST_P(LargePackedLinearTest, HandsOnANorm) {
  KernelDevice device = make_device();
  const LinearOp& linear = device.kernels().linear;
  const Shape first{2560, 640}, second{2104, 2560, true};
  const Inputs in(first, 13), next(second, 14);
  for (const WeightFormat* format : packed_formats()) {
    const Packed packed(*format, in.W, first.N, first.K);
    const Packed packed_next(*format, next.W, second.N, second.K);
    const auto data = device.array(packed.data), scales = device.array(packed.scales);
    const auto data_next = device.array(packed_next.data);
    const auto scales_next = device.array(packed_next.scales);
    const Matrix W = packed.matrix(data.data(), scales.data());
    const Matrix W_next = packed_next.matrix(data_next.data(), scales_next.data());
    for (const int rows : {1, 7, 16, 40, 64}) {
      if (!linear.defers_norm(W, W_next, rows)) GTEST_SKIP() << "no norm is deferred here";
      const size_t values = static_cast<size_t>(rows) * first.N;
      const auto x = device.array(
          std::vector<float>(in.x.begin(), in.x.begin() + static_cast<int64_t>(rows) * first.K));
      const auto bias = device.array(next.bias), norm = device.array(next.norm);
      const auto y = device.floats(values);
      const auto squares = device.floats(values / DeferredRmsNorm::kSquares);
      const auto row_scales = device.floats(rows);
      const auto deferred = device.array(std::vector<uint16_t>(values));
      const auto z = device.floats(static_cast<size_t>(rows) * second.N / 2);
      linear({.rows = rows,
              .W = W,
              .x = x.data(),
              .y = y.data(),
              .next_norm = norm.data(),
              .next = {deferred.data(), squares.data(), row_scales.data()}},
             *device.stream);
      linear({.rows = rows,
              .W = W_next,
              .bias = bias.data(),
              .y = z.data(),
              .norm = norm.data(),
              .norm_eps = 1e-5f,
              .swiglu = true,
              .soft_cap = 2.0f,
              .deferred = {deferred.data(), squares.data(), row_scales.data()}},
             *device.stream);
      Inputs alone = next;
      alone.x = y.read();
      ASSERT_TRUE(bit_equal(z.read(), run(device, second, alone, W_next, rows)))
          << describe(*format, second, rows);
    }
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LargePackedLinearTest);
RECURVE_ON_CUDA(LargePackedLinearTest);

}  // namespace recurve::testing::large_packed_linear_test
