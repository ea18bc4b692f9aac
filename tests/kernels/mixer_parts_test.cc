// What stands around the recurrences of GLA and xLSTM blocks: norms of heads, gates, rotary
// embedding, block-diagonal layers. The reference against the formula in double, every device
// against the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/compare.h"
#include "tests/support/kernel_device.h"

namespace recurve::testing {
namespace {

using Floats = std::vector<float>;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Sums of up to 1000 values in fp32 and then a few operations, each within 3 ulp.
constexpr Tolerance kSummed = {.absolute = 2e-6, .relative = 1e-5};
// Nothing but a few operations within 3 ulp.
constexpr Tolerance kFewUlp = {.absolute = 1e-37, .relative = 8 * 0x1p-23};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Rows of `width` with `gap` unused floats after each, which are NaN.
Floats spread(const Floats& x, int width, int gap) {
  Floats out;
  for (size_t at = 0; at < x.size(); at += width) {
    out.insert(out.end(), x.begin() + at, x.begin() + at + width);
    out.resize(out.size() + gap, NAN);
  }
  return out;
}

// ---- layer_norm

struct NormShape {
  int rows, D, G;
};
const NormShape kNormShapes[] = {{1, 2, 1},  {3, 17, 1},  {2, 64, 4},
                                 {1, 66, 2}, {40, 99, 3}, {2, 1000, 1}};

Floats run_layer_norm(KernelDevice& device, const NormShape& s, const Floats& x, const Floats& w,
                      const Floats& b, bool in_place = false, const Floats& residual = {}) {
  const auto in = device.array(x), weight = device.array(w), bias = device.array(b);
  const auto before = device.array(residual);
  const auto out = device.floats(x.size());
  const auto& y = in_place ? in : out;
  device.kernels().layer_norm(
      {s.rows, s.D, s.G, 1e-5f, in.data(), weight.data(), b.empty() ? nullptr : bias.data(),
       residual.empty() ? nullptr : before.data(), y.data()},
      *device.stream);
  EXPECT_TRUE(y.guards_intact());
  return y.read();
}

TEST(LayerNormReference, IsTheFormula) {
  KernelDevice device("reference");
  std::mt19937_64 random(1);
  for (const NormShape& s : kNormShapes) {
    const Floats x = normal_floats(random, static_cast<size_t>(s.rows) * s.D, 2, 0.5f);
    const Floats w = normal_floats(random, s.D), b = normal_floats(random, s.D);
    for (const bool biased : {false, true}) {
      Floats wanted;
      const int size = s.D / s.G;
      for (int at = 0; at < s.rows * s.D; ++at) {
        const float* group = &x[at / size * size];
        double mean = 0, variance = 0;
        for (int d = 0; d < size; ++d) mean += double{group[d]} / size;
        for (int d = 0; d < size; ++d) variance += std::pow(group[d] - mean, 2.0) / size;
        const double y = (x[at] - mean) / std::sqrt(variance + 1e-5) * w[at % s.D];
        wanted.push_back(static_cast<float>(y + (biased ? b[at % s.D] : 0)));
      }
      EXPECT_TRUE(close(run_layer_norm(device, s, x, w, biased ? b : Floats()), wanted, kSummed))
          << s.rows << " " << s.D << " " << s.G;
    }
  }
}

TEST(LayerNormReference, AddsTheResidual) {
  KernelDevice device("reference");
  std::mt19937_64 random(9);
  const NormShape s{3, 12, 4};
  const Floats x = normal_floats(random, 36), w = normal_floats(random, 12);
  const Floats residual = normal_floats(random, 36);
  Floats wanted = run_layer_norm(device, s, x, w, {});
  for (size_t at = 0; at < wanted.size(); ++at) wanted[at] += residual[at];
  EXPECT_TRUE(close(run_layer_norm(device, s, x, w, {}, false, residual), wanted, kSummed));
}

// ---- head_rms_norm

struct HeadShape {
  int rows, H, DV;
};
const HeadShape kHeadShapes[] = {{1, 1, 1}, {3, 2, 15}, {2, 4, 16}, {40, 3, 33}, {2, 1, 1000}};

Floats run_head_rms_norm(KernelDevice& device, const HeadShape& s, const Floats& x, const Floats& w,
                         const Floats& gate, bool in_place = false) {
  const int width = s.H * s.DV;
  const auto in = device.array(x), weight = device.array(w);
  const auto gates = device.array(spread(gate, width, 5));
  const auto out = device.floats(x.size());
  const auto& y = in_place ? in : out;
  device.kernels().head_rms_norm(
      {s.rows, s.H, s.DV, 1e-6f, width + 5, in.data(), w.empty() ? nullptr : weight.data(),
       gate.empty() ? nullptr : gates.data(), y.data()},
      *device.stream);
  EXPECT_TRUE(y.guards_intact());
  return y.read();
}

TEST(HeadRmsNormReference, IsTheFormula) {
  KernelDevice device("reference");
  std::mt19937_64 random(2);
  for (const HeadShape& s : kHeadShapes) {
    const size_t count = static_cast<size_t>(s.rows) * s.H * s.DV;
    const Floats x = normal_floats(random, count, 2), gate = normal_floats(random, count, 4);
    const Floats w = normal_floats(random, s.DV);
    for (const bool full : {true, false}) {
      Floats wanted;
      for (size_t at = 0; at < count; ++at) {
        double squares = 0;
        for (int d = 0; d < s.DV; ++d) squares += std::pow(x[at / s.DV * s.DV + d], 2.0) / s.DV;
        const double y = x[at] / std::sqrt(squares + 1e-6);
        const double rest = w[at % s.DV] * double{gate[at]} * sigmoid(gate[at]);
        wanted.push_back(static_cast<float>(full ? y * rest : y));
      }
      EXPECT_TRUE(
          close(run_head_rms_norm(device, s, x, full ? w : Floats(), full ? gate : Floats()),
                wanted, kSummed))
          << s.rows << " " << s.H << " " << s.DV;
    }
  }
}

// ---- activation

const Activation kActivations[] = {Activation::kIdentity,   Activation::kSilu, Activation::kSigmoid,
                                   Activation::kLogSigmoid, Activation::kTanh, Activation::kRelu,
                                   Activation::kEluPlusOne, Activation::kGelu};

double exact(Activation f, double x) {
  switch (f) {
    case Activation::kIdentity:
      return x;
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kSigmoid:
      return sigmoid(x);
    case Activation::kLogSigmoid:
      return x < -30 ? x : -std::log1p(std::exp(-x));
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kRelu:
      return x > 0 ? x : 0;
    case Activation::kEluPlusOne:
      return x > 0 ? x + 1 : std::exp(x);
    case Activation::kGelu:
      return x / 2 * std::erfc(-x / std::sqrt(2.0));
  }
  return NAN;
}

// From where nothing is left of a sigmoid to where nothing is left of its complement.
Floats values_around_zero() {
  Floats values = {0.0f, -0.0f};
  for (float x = -60; x < 60; x += 0.37f) values.push_back(x);
  for (float size = 1e-20f; size < 1; size *= 3) {
    values.push_back(size);
    values.push_back(-size);
  }
  return values;
}

Floats run_activation(KernelDevice& device, Activation f, float scale, float floor, int rows,
                      const Floats& x, bool in_place = false) {
  const int width = static_cast<int>(x.size()) / rows, stride = width + 3;
  const auto in = device.array(spread(x, width, 3));
  const auto out = device.floats(in.size());
  const auto& y = in_place ? in : out;
  device.kernels().activation({rows, width, f, scale, floor, stride, stride, in.data(), y.data()},
                              *device.stream);
  EXPECT_TRUE(y.guards_intact());
  const Floats all = y.read();
  Floats values;
  for (int r = 0; r < rows; ++r) {
    values.insert(values.end(), all.begin() + r * stride, all.begin() + r * stride + width);
    for (int gap = width; gap < stride; ++gap) EXPECT_TRUE(std::isnan(all[r * stride + gap]));
  }
  return values;
}

// The tail of gelu is a product with erfc of an argument that is rounded: it is off by 2^-24 times
// the square of the argument, 60^2 / 2 at most.
Tolerance tolerance_of(Activation f) {
  if (f == Activation::kGelu) return {.absolute = 1e-9, .relative = 1e-5};
  return kFewUlp;
}

TEST(ActivationReference, IsTheFormula) {
  KernelDevice device("reference");
  const Floats x = values_around_zero();
  for (const Activation f : kActivations) {
    for (const auto& [scale, floor] : {std::pair{1.0f, -kInfinity}, {0.0625f, -0.2f}}) {
      Floats wanted;
      for (const float value : x) {
        const double y = double{scale} * exact(f, value);
        wanted.push_back(static_cast<float>(std::max(y, double{floor})));
      }
      EXPECT_TRUE(close(run_activation(device, f, scale, floor, 1, x), wanted, tolerance_of(f)))
          << static_cast<int>(f);
    }
  }
}

// ---- glu, skip_gate

Floats run_glu(KernelDevice& device, Activation f, int rows, const Floats& gate_up) {
  const int F = static_cast<int>(gate_up.size()) / rows / 2;
  const auto in = device.array(gate_up);
  const auto y = device.floats(gate_up.size() / 2);
  device.kernels().glu({rows, F, f, in.data(), y.data()}, *device.stream);
  EXPECT_TRUE(y.guards_intact());
  return y.read();
}

TEST(GluReference, IsTheFormula) {
  KernelDevice device("reference");
  std::mt19937_64 random(10);
  for (const Activation f : kActivations) {
    const Floats in = normal_floats(random, 3 * 2 * 17, 3);
    Floats wanted;
    for (int r = 0; r < 3; ++r) {
      for (int d = 0; d < 17; ++d) {
        wanted.push_back(static_cast<float>(exact(f, in[r * 34 + d]) * in[r * 34 + 17 + d]));
      }
    }
    EXPECT_TRUE(close(run_glu(device, f, 3, in), wanted, tolerance_of(f))) << static_cast<int>(f);
  }
}

struct SkipGate {
  int rows, D;
  Floats h, skip, x, z;
};

SkipGate make_skip_gate(int rows, int D, std::mt19937_64& random) {
  const size_t count = static_cast<size_t>(rows) * D;
  return {rows,
          D,
          normal_floats(random, count),
          normal_floats(random, D),
          normal_floats(random, count),
          normal_floats(random, count, 4)};
}

Floats run_skip_gate(KernelDevice& device, const SkipGate& in, bool in_place = false) {
  const auto h = device.array(in.h), skip = device.array(in.skip);
  const auto x = device.array(spread(in.x, in.D, 2)), z = device.array(spread(in.z, in.D, 7));
  const auto out = device.floats(in.h.size());
  const auto& y = in_place ? h : out;
  device.kernels().skip_gate(
      {in.rows, in.D, in.D + 2, in.D + 7, h.data(), skip.data(), x.data(), z.data(), y.data()},
      *device.stream);
  EXPECT_TRUE(y.guards_intact());
  return y.read();
}

TEST(SkipGateReference, IsTheFormula) {
  KernelDevice device("reference");
  std::mt19937_64 random(11);
  for (const auto& [rows, D] : {std::pair{1, 1}, {3, 17}, {40, 64}}) {
    const SkipGate in = make_skip_gate(rows, D, random);
    Floats wanted;
    for (size_t at = 0; at < in.h.size(); ++at) {
      const double sum = in.h[at] + double{in.skip[at % D]} * in.x[at];
      wanted.push_back(static_cast<float>(sum * in.z[at] * sigmoid(in.z[at])));
    }
    EXPECT_TRUE(close(run_skip_gate(device, in), wanted, {.absolute = 2e-6, .relative = 1e-6}));
  }
}

// ---- add

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
  for (const size_t count : {1, 17, 1000}) {
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

// ---- hgrn_gate

struct HgrnGate {
  Floats g, k;
};

HgrnGate run_hgrn_gate(KernelDevice& device, int rows, const Floats& f, const Floats& bound) {
  const int D = static_cast<int>(f.size()) / rows;
  const auto in = device.array(spread(f, D, 2)), bounds = device.array(bound);
  const auto g = device.floats(f.size()), k = device.floats(f.size());
  device.kernels().hgrn_gate(
      {rows, D, D + 2, in.data(), bound.empty() ? nullptr : bounds.data(), g.data(), k.data()},
      *device.stream);
  EXPECT_TRUE(g.guards_intact());
  EXPECT_TRUE(k.guards_intact());
  return {g.read(), k.read()};
}

TEST(HgrnGateReference, IsTheFormula) {
  KernelDevice device("reference");
  const Floats f = values_around_zero();
  for (const float b : {0.0f, 1e-4f, 0.3f, 0.999f}) {
    Floats g, k;
    for (const float x : f) {
      // exp(g) = b + (1 - b) sigmoid(x), and 1 - exp(g) without cancellation.
      const double key = (1 - double{b}) / (1 + std::exp(double{x}));
      k.push_back(static_cast<float>(key));
      if (b == 0 && x < 0) {
        g.push_back(static_cast<float>(x - std::log1p(std::exp(double{x}))));
      } else {
        g.push_back(static_cast<float>(key > 0.5 ? std::log(b + (1 - double{b}) * sigmoid(x))
                                                 : std::log1p(-key)));
      }
    }
    const HgrnGate found = run_hgrn_gate(device, 1, f, Floats(f.size(), b));
    EXPECT_TRUE(close(found.k, k, kFewUlp)) << b;
    // A decay near 1 given as its logarithm is only as exact as the decay: 2^-24.
    EXPECT_TRUE(close(found.g, g, {.absolute = b == 0 ? 1e-37 : 2e-7, .relative = 2e-6})) << b;
    if (b == 0) {
      EXPECT_TRUE(bit_equal(run_hgrn_gate(device, 1, f, {}).g, found.g));
    }
  }
}

// ---- positions, rotary

TEST(PositionsReference, CountOnWhereTheSessionStopped) {
  KernelDevice device("reference");
  const auto begin = device.array(std::vector<int32_t>{0, 3, 4, 6});
  const auto slot = device.array(std::vector<int32_t>{2, 0, 3});
  const auto count = device.array(std::vector<int32_t>{7, 1000, 0, 100});
  const auto position = device.array(std::vector<int32_t>(6, -1));
  device.kernels().positions({{3, 6, 3, begin.data(), slot.data()}, count.data(), position.data()},
                             *device.stream);
  EXPECT_EQ(position.read(), (std::vector<int32_t>{0, 1, 2, 7, 100, 101}));
  EXPECT_EQ(count.read(), (std::vector<int32_t>{8, 1000, 3, 102}));
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

// ---- headwise_linear

struct Headwise {
  int rows, H, N, K;
};
const Headwise kHeadwise[] = {{1, 1, 1, 1},  {3, 2, 4, 4},    {2, 16, 4, 4},
                              {5, 3, 7, 11}, {40, 4, 33, 32}, {1, 2, 80, 64}};

Floats run_headwise(KernelDevice& device, const Headwise& s, DType type, const Floats& W,
                    const Floats& x) {
  const auto weights = device.array(stored(W, type));
  const auto in = device.array(spread(x, s.H * s.K, 3));
  const auto out = device.floats(static_cast<size_t>(s.rows) * (s.H * s.N + 2));
  device.kernels().headwise_linear({s.rows,
                                    s.H,
                                    {type, s.H * s.N, s.K, weights.data()},
                                    s.H * s.K + 3,
                                    s.H * s.N + 2,
                                    in.data(),
                                    out.data()},
                                   *device.stream);
  EXPECT_TRUE(out.guards_intact());
  const Floats all = out.read();
  Floats values;
  for (int r = 0; r < s.rows; ++r) {
    const auto row = all.begin() + r * (s.H * s.N + 2);
    values.insert(values.end(), row, row + s.H * s.N);
    EXPECT_TRUE(std::isnan(row[s.H * s.N]));
  }
  return values;
}

Floats headwise_weights(const Headwise& s, DType type, std::mt19937_64& random) {
  return rounded(normal_floats(random, static_cast<size_t>(s.H) * s.N * s.K), type);
}

TEST(HeadwiseLinearReference, IsTheFormula) {
  KernelDevice device("reference");
  std::mt19937_64 random(6);
  for (const Headwise& s : kHeadwise) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      const Floats W = headwise_weights(s, type, random);
      const Floats x = normal_floats(random, static_cast<size_t>(s.rows) * s.H * s.K);
      Floats wanted;
      for (int r = 0; r < s.rows; ++r) {
        for (int h = 0; h < s.H; ++h) {
          for (int o = 0; o < s.N; ++o) {
            double sum = 0;
            for (int k = 0; k < s.K; ++k) {
              sum += double{W[(h * s.N + o) * s.K + k]} * x[(r * s.H + h) * s.K + k];
            }
            wanted.push_back(static_cast<float>(sum));
          }
        }
      }
      EXPECT_TRUE(close(run_headwise(device, s, type, W, x), wanted, kSummed)) << s.K;
    }
  }
}

// ---- every device

class MixerPartsTest : public DeviceTest {};

TEST_P(MixerPartsTest, NormsMatch) {
  KernelDevice reference("reference"), device = make_device();
  std::mt19937_64 random(7);
  for (const NormShape& s : kNormShapes) {
    const Floats x = normal_floats(random, static_cast<size_t>(s.rows) * s.D, 2, 0.5f);
    const Floats w = normal_floats(random, s.D), b = normal_floats(random, s.D);
    const Floats found = run_layer_norm(device, s, x, w, b);
    EXPECT_TRUE(close(found, run_layer_norm(reference, s, x, w, b), kSummed));
    EXPECT_TRUE(bit_equal(run_layer_norm(device, s, x, w, b, true), found));
    EXPECT_TRUE(close(run_layer_norm(device, s, x, w, b, false, x),
                      run_layer_norm(reference, s, x, w, b, false, x), kSummed));
    const NormShape one{1, s.D, s.G};  // the last row by itself
    const Floats last(x.end() - s.D, x.end());
    EXPECT_TRUE(bit_equal(run_layer_norm(device, one, last, w, b), std::span(found).last(s.D)));
  }
  for (const HeadShape& s : kHeadShapes) {
    const size_t count = static_cast<size_t>(s.rows) * s.H * s.DV;
    const Floats x = normal_floats(random, count, 2), gate = normal_floats(random, count, 4);
    const Floats w = normal_floats(random, s.DV);
    const Floats found = run_head_rms_norm(device, s, x, w, gate);
    EXPECT_TRUE(close(found, run_head_rms_norm(reference, s, x, w, gate), kSummed));
    EXPECT_TRUE(bit_equal(run_head_rms_norm(device, s, x, w, gate, true), found));
    EXPECT_TRUE(close(run_head_rms_norm(device, s, x, {}, {}),
                      run_head_rms_norm(reference, s, x, {}, {}), kSummed));
  }
}

TEST_P(MixerPartsTest, GatesMatch) {
  KernelDevice reference("reference"), device = make_device();
  Floats x = values_around_zero();
  x.resize(x.size() / 3 * 3);
  for (const Activation f : kActivations) {
    const Floats found = run_activation(device, f, 0.5f, -3, 3, x);
    EXPECT_TRUE(close(found, run_activation(reference, f, 0.5f, -3, 3, x), tolerance_of(f)))
        << static_cast<int>(f);
    EXPECT_TRUE(bit_equal(run_activation(device, f, 0.5f, -3, 3, x, true), found));
  }
  for (const Activation f : kActivations) {
    Floats gate_up = x;
    gate_up.resize(2 * x.size(), 0.7f);
    const Floats found = run_glu(device, f, 1, gate_up);
    EXPECT_TRUE(close(found, run_glu(reference, f, 1, gate_up), tolerance_of(f)));
  }
  std::mt19937_64 random(12);
  const SkipGate in = make_skip_gate(7, 33, random);
  const Floats gated = run_skip_gate(device, in);
  EXPECT_TRUE(close(gated, run_skip_gate(reference, in), {.absolute = 2e-6, .relative = 1e-6}));
  EXPECT_TRUE(bit_equal(run_skip_gate(device, in, true), gated));
  for (const float b : {0.0f, 0.3f}) {
    const Floats bound(x.size() / 3, b);
    const HgrnGate found = run_hgrn_gate(device, 3, x, bound);
    const HgrnGate wanted = run_hgrn_gate(reference, 3, x, bound);
    EXPECT_TRUE(close(found.k, wanted.k, kFewUlp));
    EXPECT_TRUE(close(found.g, wanted.g, {.absolute = b == 0 ? 1e-37 : 2e-7, .relative = 2e-6}));
  }
}

TEST_P(MixerPartsTest, RotaryAndHeadwiseMatch) {
  KernelDevice reference("reference"), device = make_device();
  std::mt19937_64 random(8);
  for (const auto& [H, D] : {std::pair{1, 2}, {3, 8}, {2, 66}}) {
    const Rotary in = make_rotary(H, D, random);
    EXPECT_TRUE(close(run_rotary(device, in), run_rotary(reference, in),
                      {.absolute = 1e-6, .relative = 1e-6}));
  }
  for (const Headwise& s : kHeadwise) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      const Floats W = headwise_weights(s, type, random);
      const Floats x = normal_floats(random, static_cast<size_t>(s.rows) * s.H * s.K);
      const Floats found = run_headwise(device, s, type, W, x);
      EXPECT_TRUE(close(found, run_headwise(reference, s, type, W, x), kSummed)) << s.K;
      const Headwise one{1, s.H, s.N, s.K};  // the last row by itself
      const Floats last(x.end() - s.H * s.K, x.end());
      EXPECT_TRUE(bit_equal(run_headwise(device, one, type, W, last),
                            std::span(found).last(static_cast<size_t>(s.H) * s.N)));
    }
  }
}

TEST_P(MixerPartsTest, Adds) {
  KernelDevice device = make_device();
  expect_adds(device);
}

RECURVE_ON_EACH_DEVICE(MixerPartsTest);

}  // namespace
}  // namespace recurve::testing
