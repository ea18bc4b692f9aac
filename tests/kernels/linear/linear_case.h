#pragma once
// A linear layer as it is tested: its shapes, inputs and tolerances.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tests/support/kernels/compare.h"
#include "tests/support/kernels/kernel_device.h"

namespace recurve::testing::linear_test {

struct Shape {
  int rows, N, K;
  DType type;
  bool bias, residual;
  bool norm = false, swiglu = false;
  float soft_cap = 0;

  int outputs() const { return swiglu ? N / 2 : N; }
};

struct Inputs {
  std::vector<float> W, bias, residual, x, norm;
};

// x around 1 and W scaled so that an output is around 1 whatever K is. With weights in bf16 x is
// a number of bf16 too: devices that round x and devices that do not compute the same.
inline Inputs make_inputs(const Shape& s, uint64_t seed) {
  std::mt19937_64 random(seed);
  Inputs in;
  const size_t weights = static_cast<size_t>(s.N) * s.K;
  in.W = rounded(normal_floats(random, weights, 1 / std::sqrt(static_cast<float>(s.K))), s.type);
  in.bias = normal_floats(random, s.N);
  in.residual = normal_floats(random, static_cast<size_t>(s.rows) * s.N);
  in.x = rounded(normal_floats(random, static_cast<size_t>(s.rows) * s.K), s.type);
  in.norm = normal_floats(random, s.K, 0.3f, 1);
  return in;
}

// The inputs of some rows alone, without W.
inline Inputs some_rows(const Shape& s, const Inputs& in, int first, int rows) {
  const auto part = [&](const std::vector<float>& of, int width) {
    const auto begin = of.begin() + static_cast<int64_t>(first) * width;
    return std::vector<float>(begin, begin + static_cast<int64_t>(rows) * width);
  };
  return {.W = {},
          .bias = in.bias,
          .residual = part(in.residual, s.N),
          .x = part(in.x, s.K),
          .norm = in.norm};
}

// W: in.W, on the device.
inline std::vector<float> run(KernelDevice& device, const Shape& s, const Inputs& in,
                              const Matrix& W) {
  const auto bias = device.array(in.bias), residual = device.array(in.residual);
  const auto x = device.array(in.x), norm = device.array(in.norm);
  const auto y = device.floats(static_cast<size_t>(s.rows) * s.outputs());
  LinearArgs args;
  args.rows = s.rows;
  args.W = W;
  args.bias = s.bias ? bias.data() : nullptr;
  args.residual = s.residual ? residual.data() : nullptr;
  args.x = x.data();
  args.y = y.data();
  args.norm = s.norm ? norm.data() : nullptr;
  args.norm_eps = 1e-5f;
  args.swiglu = s.swiglu;
  args.soft_cap = s.soft_cap;
  device.kernels().linear(args, *device.stream);
  EXPECT_TRUE(y.guards_intact());
  return y.read();
}

inline std::vector<float> run(KernelDevice& device, const Shape& s, const Inputs& in,
                              const void* W) {
  return run(device, s, in, Matrix{s.type, s.N, s.K, W});
}

inline std::vector<float> run(KernelDevice& device, const Shape& s, const Inputs& in) {
  const auto W = device.array(stored(in.W, s.type));
  return run(device, s, in, W.data());
}

// In double, straight from the formula.
inline std::vector<float> naive(const Shape& s, const Inputs& in) {
  const int outputs = s.outputs();
  std::vector<float> y(static_cast<size_t>(s.rows) * outputs);
  for (int r = 0; r < s.rows; ++r) {
    std::vector<double> x(in.x.begin() + r * s.K, in.x.begin() + (r + 1) * s.K), z(s.N);
    double squares = 0;
    for (const double value : x) squares += value * value;
    for (int k = 0; k < s.K && s.norm; ++k) x[k] *= in.norm[k] / std::sqrt(squares / s.K + 1e-5);
    for (int n = 0; n < s.N; ++n) {
      z[n] = s.bias ? in.bias[n] : 0;
      for (int k = 0; k < s.K; ++k) z[n] += x[k] * in.W[static_cast<size_t>(n) * s.K + k];
    }
    for (int n = 0; n < outputs; ++n) {
      double sum = s.swiglu ? z[n] / (1 + std::exp(-z[n])) * z[outputs + n] : z[n];
      if (s.soft_cap > 0) sum = s.soft_cap * std::tanh(sum / s.soft_cap);
      if (s.residual) sum += in.residual[static_cast<size_t>(r) * outputs + n];
      y[static_cast<size_t>(r) * outputs + n] = static_cast<float>(sum);
    }
  }
  return y;
}

// A sum of K products that ends around 1 is rounded K times at up to a few units: a random walk of
// sqrt(K) steps of 2^-24, times 8 for the largest of many outputs and partial sums above 1.
inline Tolerance tolerance_for(int K) {
  return {.absolute = 8 * std::sqrt(static_cast<double>(K) + 4) * 0x1p-24, .relative = 0x1p-22};
}

inline std::vector<Shape> shapes() {
  std::vector<Shape> shapes;
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const int K : {1, 5, 16, 31, 64, 100, 333}) {
      for (const int N : {1, 3, 8, 17, 65}) {
        for (const int rows : {1, 2, 3, 4, 5, 6, 7, 13, 110}) {
          shapes.push_back({rows, N, K, type, N % 2 == 1, rows % 3 != 0});
        }
      }
    }
  }
  return shapes;
}

// A norm's outcome is rounded by devices that compute in bf16: by 2^-9 of itself at most, 0.42 of
// that on average. Of K products that end around 1 these errors add up to 2^-9 * 0.42, and to half
// as much again where a row of W is long; 7 deviations, which the largest of 300,000 values needs.
// Where two such sums are multiplied, the error of one counts as often as the other is large: up to
// 6, with the bias.
inline Tolerance fused_tolerance_for(const Shape& s) {
  if (s.type == DType::kF32 || !s.norm) {
    return {.absolute = 8 * tolerance_for(s.K).absolute, .relative = 0x1p-20};
  }
  const double deviation = 0x1p-9 * 0.42 * 1.5;
  return {.absolute = 7 * deviation * (s.swiglu ? 6 : 1), .relative = 0x1p-7, .angle = 2e-5};
}

// What may be fused with the product.
inline std::vector<Shape> fused_shapes(int K) {
  std::vector<Shape> shapes;
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const int N : {2, 8, 130, 312}) {
      for (const int rows : {1, 3, 9, 100}) {
        shapes.push_back({rows, N, K, type, true, true, true});
        shapes.push_back({rows, N, K, type, false, false, false, true});
        shapes.push_back({rows, N, K, type, true, false, true, true});
        shapes.push_back({rows, N, K, type, true, false, false, false, 0.5f});
        shapes.push_back({rows, N, K, type, false, false, true, false, 1.5f});
      }
    }
  }
  return shapes;
}

inline std::string describe(const Shape& s) {
  return std::string(name_of(s.type)) + " rows " + std::to_string(s.rows) + " N " +
         std::to_string(s.N) + " K " + std::to_string(s.K) + (s.norm ? ", norm" : "") +
         (s.swiglu ? ", swiglu" : "") + (s.soft_cap > 0 ? ", cap" : "");
}

}  // namespace recurve::testing::linear_test
