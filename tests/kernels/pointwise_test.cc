// Norms, gates, embedding and the other ops that work value by value: the reference against the
// formula in double, every device against the reference.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/kernels/compare.h"
#include "tests/support/kernels/kernel_device.h"

namespace recurve::testing::pointwise_test {

using Floats = std::vector<float>;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Sums of up to 1000 values in fp32 (a random walk of sqrt(1000) steps of 2^-24 = 2e-6) and then a
// few operations, each within 3 ulp.
constexpr Tolerance kSummed = {.absolute = 1e-6, .relative = 1e-5};
// Nothing but a few operations within 3 ulp.
constexpr Tolerance kFewUlp = {.absolute = 1e-37, .relative = 8 * 0x1p-23};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

struct Shape {
  int rows, width;
};
const Shape kShapes[] = {{1, 1}, {1, 15}, {2, 16}, {3, 17}, {1, 320}, {70, 33}, {5, 1000}};

// ---- rms_norm

Floats run_rms_norm(KernelDevice& device, const Shape& s, const Floats& x, const Floats& w,
                    bool in_place = false) {
  const auto in = device.array(x), weight = device.array(w);
  const auto out = device.floats(x.size());
  const auto& y = in_place ? in : out;
  device.kernels().rms_norm({s.rows, s.width, 1e-6f, in.data(), weight.data(), y.data()},
                            *device.stream);
  EXPECT_TRUE(y.guards_intact());
  return y.read();
}

TEST(RmsNormReference, IsTheFormula) {
  KernelDevice device("reference");
  std::mt19937_64 random(1);
  for (const Shape& s : kShapes) {
    const Floats x = normal_floats(random, static_cast<size_t>(s.rows) * s.width, 2, 0.5f);
    const Floats w = normal_floats(random, s.width);
    Floats wanted;
    for (int r = 0; r < s.rows; ++r) {
      double squares = 0;
      for (int d = 0; d < s.width; ++d) squares += square(x[r * s.width + d]);
      for (int d = 0; d < s.width; ++d) {
        const double y = x[r * s.width + d] * w[d] / std::sqrt(squares / s.width + 1e-6);
        wanted.push_back(static_cast<float>(y));
      }
    }
    EXPECT_TRUE(close(run_rms_norm(device, s, x, w), wanted, kSummed)) << s.rows << " " << s.width;
  }
}

// ---- head_norm_gate

struct HeadNormGate {
  int rows, H, DV;
  Floats h, o, w;  // o: rows 5 floats longer than needed
  int o_stride() const { return H * DV + 5; }
};

HeadNormGate make_head_norm_gate(int rows, int H, int DV, std::mt19937_64& random) {
  HeadNormGate in{rows, H, DV, {}, {}, {}};
  in.h = normal_floats(random, static_cast<size_t>(rows) * H * DV, 2, 1);
  in.o = normal_floats(random, static_cast<size_t>(rows) * in.o_stride(), 4);
  in.w = normal_floats(random, static_cast<size_t>(H) * DV);
  return in;
}

Floats run_head_norm_gate(KernelDevice& device, const HeadNormGate& in, bool in_place = false) {
  const auto h = device.array(in.h), o = device.array(in.o), w = device.array(in.w);
  const auto out = device.floats(in.h.size());
  const auto& y = in_place ? h : out;
  device.kernels().head_norm_gate(
      {in.rows, in.H, in.DV, 1e-6f, in.o_stride(), h.data(), o.data(), w.data(), y.data()},
      *device.stream);
  EXPECT_TRUE(y.guards_intact());
  return y.read();
}

const std::tuple<int, int, int> kHeadShapes[] = {{1, 1, 2},  {3, 2, 15},  {2, 4, 16},
                                                 {1, 4, 80}, {40, 3, 33}, {2, 1, 1000}};

TEST(HeadNormGateReference, IsTheFormula) {
  KernelDevice device("reference");
  std::mt19937_64 random(2);
  for (const auto& [rows, H, DV] : kHeadShapes) {
    const HeadNormGate in = make_head_norm_gate(rows, H, DV, random);
    Floats wanted;
    for (int r = 0; r < rows; ++r) {
      for (int head = 0; head < H; ++head) {
        const float* h = &in.h[(r * H + head) * DV];
        double mean = 0, variance = 0;
        for (int d = 0; d < DV; ++d) mean += h[d] / static_cast<double>(DV);
        for (int d = 0; d < DV; ++d) variance += square(h[d] - mean) / DV;
        for (int d = 0; d < DV; ++d) {
          const double normed = (h[d] - mean) / std::sqrt(variance + 1e-6) * in.w[head * DV + d];
          const double gate = sigmoid(in.o[r * in.o_stride() + head * DV + d]);
          wanted.push_back(static_cast<float>(gate * normed));
        }
      }
    }
    EXPECT_TRUE(close(run_head_norm_gate(device, in), wanted, kSummed)) << rows << H << DV;
  }
}

// ---- glu with silu

Floats run_silu_glu(KernelDevice& device, const Shape& s, const Floats& gate_up) {
  const auto in = device.array(gate_up);
  const auto y = device.floats(gate_up.size() / 2);
  device.kernels().glu({s.rows, s.width, Activation::kSilu, in.data(), y.data()}, *device.stream);
  EXPECT_TRUE(y.guards_intact());
  return y.read();
}

TEST(SiluGluReference, IsTheFormula) {
  KernelDevice device("reference");
  std::mt19937_64 random(3);
  for (const Shape& s : kShapes) {
    const Floats in = normal_floats(random, static_cast<size_t>(s.rows) * 2 * s.width, 5);
    Floats wanted;
    for (int r = 0; r < s.rows; ++r) {
      for (int f = 0; f < s.width; ++f) {
        const double gate = in[r * 2 * s.width + f], up = in[r * 2 * s.width + s.width + f];
        wanted.push_back(static_cast<float>(gate * sigmoid(gate) * up));
      }
    }
    EXPECT_TRUE(close(run_silu_glu(device, s, in), wanted, kFewUlp)) << s.rows << " " << s.width;
  }
}

// ---- soft_cap

Floats run_soft_cap(KernelDevice& device, const Floats& x, float cap) {
  const auto array = device.array(x);
  device.kernels().soft_cap({static_cast<int64_t>(x.size()), cap, array.data()}, *device.stream);
  EXPECT_TRUE(array.guards_intact());
  return array.read();
}

// Every size of value that tanh treats in its own way, of both signs.
Floats values_of_all_sizes(float scale) {
  Floats values = {0.0f, -0.0f, kInfinity, -kInfinity, kNan};
  for (float size = 1e-30f; size < 1e30f; size *= 1.07f) {
    values.push_back(size * scale);
    values.push_back(-size * scale);
  }
  return values;
}

TEST(SoftCapReference, IsTheFormula) {
  KernelDevice device("reference");
  const Floats x = values_of_all_sizes(1);
  Floats wanted;
  for (const float value : x) wanted.push_back(static_cast<float>(30 * std::tanh(value / 30.0)));
  EXPECT_TRUE(close(run_soft_cap(device, x, 30), wanted, kFewUlp));
}

// ---- embed, gather_rows

Floats run_embed(KernelDevice& device, DType type, int V, int D, const Floats& E,
                 const std::vector<int32_t>& tokens) {
  const auto table = device.array(stored(E, type));
  const auto ids = device.array(tokens);
  const auto x = device.floats(tokens.size() * D);
  device.kernels().embed(
      {static_cast<int>(tokens.size()), {type, V, D, table.data()}, ids.data(), x.data()},
      *device.stream);
  EXPECT_TRUE(x.guards_intact());
  return x.read();
}

void expect_embeds(KernelDevice& device) {
  std::mt19937_64 random(4);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const int D : {1, 17, 64, 1001}) {
      const Floats E = rounded(normal_floats(random, static_cast<size_t>(7) * D), type);
      std::vector<int32_t> tokens;
      Floats wanted;
      for (int r = 0; r < 70; ++r) {
        tokens.push_back(static_cast<int32_t>(random() % 7));
        wanted.insert(wanted.end(), E.begin() + tokens.back() * D,
                      E.begin() + (tokens.back() + 1) * D);
      }
      EXPECT_TRUE(bit_equal(run_embed(device, type, 7, D, E, tokens), wanted)) << D;
    }
  }
}

void expect_gathers(KernelDevice& device) {
  std::mt19937_64 random(5);
  for (const int D : {1, 17, 320, 2000}) {
    const Floats x = normal_floats(random, static_cast<size_t>(9) * D);
    const std::vector<int32_t> rows = {8, 0, 3, 3, 7, 1, 2, 8, 5, 6, 4, 0, 1, 2, 3, 4, 5, 6, 7, 8};
    Floats wanted;
    for (const int32_t r : rows) wanted.insert(wanted.end(), &x[r * D], &x[r * D] + D);
    const auto in = device.array(x);
    const auto index = device.array(rows);
    const auto y = device.floats(wanted.size());
    device.kernels().gather_rows(
        {static_cast<int>(rows.size()), D, in.data(), index.data(), y.data()}, *device.stream);
    EXPECT_TRUE(y.guards_intact());
    EXPECT_TRUE(bit_equal(y.read(), wanted)) << D;
  }
}

TEST(EmbedReference, PicksAndWidens) {
  KernelDevice device("reference");
  expect_embeds(device);
}

TEST(GatherRowsReference, Picks) {
  KernelDevice device("reference");
  expect_gathers(device);
}

// ---- every device

class PointwiseTest : public DeviceTest {};

TEST_P(PointwiseTest, RmsNormMatches) {
  KernelDevice reference("reference"), device = make_device();
  std::mt19937_64 random(6);
  for (const Shape& s : kShapes) {
    const Floats x = normal_floats(random, static_cast<size_t>(s.rows) * s.width, 2, 0.5f);
    const Floats w = normal_floats(random, s.width);
    const Floats found = run_rms_norm(device, s, x, w);
    EXPECT_TRUE(close(found, run_rms_norm(reference, s, x, w), kSummed));
    EXPECT_TRUE(bit_equal(run_rms_norm(device, s, x, w, true), found));
    const Shape one{1, s.width};  // the last row by itself
    const Floats last(x.end() - s.width, x.end());
    EXPECT_TRUE(bit_equal(run_rms_norm(device, one, last, w), std::span(found).last(s.width)));
  }
}

TEST_P(PointwiseTest, HeadNormGateMatches) {
  KernelDevice reference("reference"), device = make_device();
  std::mt19937_64 random(7);
  for (const auto& [rows, H, DV] : kHeadShapes) {
    const HeadNormGate in = make_head_norm_gate(rows, H, DV, random);
    const Floats found = run_head_norm_gate(device, in);
    EXPECT_TRUE(close(found, run_head_norm_gate(reference, in), kSummed)) << rows << H << DV;
    EXPECT_TRUE(bit_equal(run_head_norm_gate(device, in, true), found));
  }
}

TEST_P(PointwiseTest, NanStaysInItsRow) {
  KernelDevice reference("reference"), device = make_device();
  std::mt19937_64 random(8);
  const Shape s{4, 37};
  Floats x = normal_floats(random, 4 * 37);
  x[40] = kNan;
  x[80] = kInfinity;
  const Floats w = normal_floats(random, 37);
  EXPECT_TRUE(close(run_rms_norm(device, s, x, w), run_rms_norm(reference, s, x, w), kSummed));
  HeadNormGate in = make_head_norm_gate(3, 2, 19, random);
  in.h[21] = kNan;
  in.o[100] = kNan;
  EXPECT_TRUE(close(run_head_norm_gate(device, in), run_head_norm_gate(reference, in), kSummed));
}

TEST_P(PointwiseTest, SiluGluMatches) {
  KernelDevice reference("reference"), device = make_device();
  std::mt19937_64 random(9);
  for (const Shape& s : kShapes) {
    const Floats in = normal_floats(random, static_cast<size_t>(s.rows) * 2 * s.width, 5);
    EXPECT_TRUE(close(run_silu_glu(device, s, in), run_silu_glu(reference, s, in), kFewUlp));
  }
}

// silu goes through exp, so this is also its test: subnormal and infinite results, NaN.
TEST_P(PointwiseTest, SiluGluMatchesForGatesOfAnySize) {
  KernelDevice reference("reference"), device = make_device();
  Floats gates = values_of_all_sizes(1);
  for (float x = -110; x < 110; x += 0.173f) gates.push_back(x);
  const Shape s{1, static_cast<int>(gates.size())};
  Floats in = gates;
  in.resize(2 * gates.size(), 1);
  Tolerance tolerance = kFewUlp;
  tolerance.absolute = 0x1p-126 * 110;  // exp of a subnormal result has fewer bits
  EXPECT_TRUE(close(run_silu_glu(device, s, in), run_silu_glu(reference, s, in), tolerance));
}

TEST_P(PointwiseTest, SoftCapMatches) {
  KernelDevice reference("reference"), device = make_device();
  for (const float cap : {15.0f, 30.0f, 0.7f}) {
    const Floats x = values_of_all_sizes(cap);
    EXPECT_TRUE(close(run_soft_cap(device, x, cap), run_soft_cap(reference, x, cap), kFewUlp));
  }
}

// A logit's place in the batch must not matter: whole vectors and what is left over agree.
TEST_P(PointwiseTest, SoftCapOfAValueDoesNotDependOnItsIndex) {
  KernelDevice device = make_device();
  std::mt19937_64 random(10);
  const Floats x = normal_floats(random, 40000, 40);
  const Floats all = run_soft_cap(device, x, 30);
  for (const size_t count : {1, 7, 31, 1023, 20001}) {
    const Floats part(x.begin() + 5, x.begin() + 5 + static_cast<ptrdiff_t>(count));
    EXPECT_TRUE(bit_equal(run_soft_cap(device, part, 30), std::span(all).subspan(5, count)));
  }
}

TEST_P(PointwiseTest, EmbedPicksAndWidens) {
  KernelDevice device = make_device();
  expect_embeds(device);
}

TEST_P(PointwiseTest, GatherRowsPicks) {
  KernelDevice device = make_device();
  expect_gathers(device);
}

RECURVE_ON_EACH_DEVICE(PointwiseTest);
RECURVE_ON_CUDA(PointwiseTest);

}  // namespace recurve::testing::pointwise_test
