#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/kernel_device.h"

namespace recurve::testing {
namespace {

struct Shape {
  int rows, N, K;
  DType type;
  bool bias, residual;
};

struct Inputs {
  std::vector<float> W, bias, residual, x;
};

// x around 1 and W scaled so that an output is around 1 whatever K is.
Inputs make_inputs(const Shape& s, uint64_t seed) {
  std::mt19937_64 random(seed);
  Inputs in;
  const size_t weights = static_cast<size_t>(s.N) * s.K;
  in.W = rounded(normal_floats(random, weights, 1 / std::sqrt(static_cast<float>(s.K))), s.type);
  in.bias = normal_floats(random, s.N);
  in.residual = normal_floats(random, static_cast<size_t>(s.rows) * s.N);
  in.x = normal_floats(random, static_cast<size_t>(s.rows) * s.K);
  return in;
}

std::vector<float> run(KernelDevice& device, const Shape& s, const Inputs& in) {
  const auto W = device.array(stored(in.W, s.type));
  const auto bias = device.array(in.bias), residual = device.array(in.residual);
  const auto x = device.array(in.x);
  const auto y = device.floats(static_cast<size_t>(s.rows) * s.N);
  LinearArgs args;
  args.rows = s.rows;
  args.W = {s.type, s.N, s.K, W.data()};
  args.bias = s.bias ? bias.data() : nullptr;
  args.residual = s.residual ? residual.data() : nullptr;
  args.x = x.data();
  args.y = y.data();
  device.kernels().linear(args, *device.stream);
  EXPECT_TRUE(y.guards_intact());
  return y.read();
}

// In double, straight from the formula.
std::vector<float> naive(const Shape& s, const Inputs& in) {
  std::vector<float> y(static_cast<size_t>(s.rows) * s.N);
  for (int r = 0; r < s.rows; ++r) {
    for (int n = 0; n < s.N; ++n) {
      double sum = s.bias ? in.bias[n] : 0;
      if (s.residual) sum += in.residual[static_cast<size_t>(r) * s.N + n];
      for (int k = 0; k < s.K; ++k) {
        sum += static_cast<double>(in.x[static_cast<size_t>(r) * s.K + k]) *
               in.W[static_cast<size_t>(n) * s.K + k];
      }
      y[static_cast<size_t>(r) * s.N + n] = static_cast<float>(sum);
    }
  }
  return y;
}

// A sum of K products that ends around 1 is rounded K times at up to a few units: a random walk of
// sqrt(K) steps of 2^-24, times 8 for the largest of many outputs and partial sums above 1.
Tolerance tolerance_for(int K) {
  return {.absolute = 8 * std::sqrt(static_cast<double>(K) + 4) * 0x1p-24, .relative = 0x1p-22};
}

std::vector<Shape> shapes() {
  std::vector<Shape> shapes;
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const int K : {1, 5, 16, 31, 64, 100, 333}) {
      for (const int N : {1, 3, 8, 17, 65}) {
        for (const int rows : {1, 2, 3, 4, 5, 6, 7, 13, 70}) {
          shapes.push_back({rows, N, K, type, N % 2 == 1, rows % 3 != 0});
        }
      }
    }
  }
  return shapes;
}

std::string describe(const Shape& s) {
  return std::string(name_of(s.type)) + " rows " + std::to_string(s.rows) + " N " +
         std::to_string(s.N) + " K " + std::to_string(s.K);
}

TEST(LinearReference, IsTheFormula) {
  KernelDevice device("reference");
  for (const Shape& s : shapes()) {
    const Inputs in = make_inputs(s, 1);
    ASSERT_TRUE(close(run(device, s, in), naive(s, in), tolerance_for(s.K))) << describe(s);
  }
}

class LinearTest : public DeviceTest {};

TEST_P(LinearTest, MatchesTheReference) {
  KernelDevice reference("reference"), device = make_device();
  for (const Shape& s : shapes()) {
    const Inputs in = make_inputs(s, 2);
    ASSERT_TRUE(close(run(device, s, in), run(reference, s, in), tolerance_for(s.K)))
        << describe(s);
  }
}

// Large enough to be split over threads and to leave the cache's block of outputs.
TEST_P(LinearTest, MatchesTheReferenceWhenSplit) {
  KernelDevice reference("reference"), device = make_device();
  for (const Shape& s : {Shape{2, 700, 1024, DType::kF32, true, true},
                         Shape{130, 24, 512, DType::kBF16, true, false}}) {
    const Inputs in = make_inputs(s, 3);
    ASSERT_TRUE(close(run(device, s, in), run(reference, s, in), tolerance_for(s.K)))
        << describe(s);
  }
}

TEST_P(LinearTest, ResidualMayBeTheOutput) {
  KernelDevice device = make_device();
  const Shape s{9, 33, 40, DType::kBF16, true, true};
  const Inputs in = make_inputs(s, 4);
  const auto W = device.array(stored(in.W, s.type));
  const auto x = device.array(in.x), bias = device.array(in.bias), y = device.array(in.residual);
  LinearArgs args;
  args.rows = s.rows;
  args.W = {s.type, s.N, s.K, W.data()};
  args.bias = bias.data();
  args.x = x.data();
  args.residual = args.y = y.data();
  device.kernels().linear(args, *device.stream);
  EXPECT_TRUE(bit_equal(y.read(), run(device, s, in)));
}

TEST_P(LinearTest, KeepsNanAndInfinityWhereTheyAre) {
  KernelDevice reference("reference"), device = make_device();
  const Shape s{7, 19, 37, DType::kBF16, false, false};
  Inputs in = make_inputs(s, 5);
  in.x[2 * s.K + 36] = std::numeric_limits<float>::quiet_NaN();
  in.x[4 * s.K + 1] = std::numeric_limits<float>::infinity();
  in.W[5 * s.K + 3] = -std::numeric_limits<float>::infinity();
  ASSERT_TRUE(close(run(device, s, in), run(reference, s, in), tolerance_for(s.K)));
}

// A row's result is its own: the same bits alone, among others, anywhere among them.
TEST_P(LinearTest, RowsDoNotKnowEachOther) {
  KernelDevice device = make_device();
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const auto& [N, K] : {std::pair{50, 77}, std::pair{300, 640}}) {
      const Shape many{71, N, K, type, true, true};
      const Inputs in = make_inputs(many, 6);
      const std::vector<float> all = run(device, many, in);
      for (const auto& [first, rows] : {std::pair{0, 1},
                                        {70, 1},
                                        {33, 1},
                                        {5, 2},
                                        {11, 3},
                                        {40, 4},
                                        {20, 5},
                                        {1, 6},
                                        {30, 16},
                                        {1, 70}}) {
        Shape few = many;
        few.rows = rows;
        Inputs part = in;
        part.x = {in.x.begin() + first * K, in.x.begin() + (first + rows) * K};
        part.residual = {in.residual.begin() + first * N, in.residual.begin() + (first + rows) * N};
        const std::vector<float> wanted(all.begin() + first * N, all.begin() + (first + rows) * N);
        ASSERT_TRUE(bit_equal(run(device, few, part), wanted))
            << describe(few) << " from row " << first;
      }
    }
  }
}

TEST_P(LinearTest, ThreadsChangeNothing) {
  KernelDevice device = make_device(), alone(GetParam().device, 1);
  for (const Shape& s :
       {Shape{1, 1000, 640, DType::kBF16, true, true}, Shape{64, 120, 200, DType::kF32, true, true},
        Shape{200, 16, 512, DType::kF32, false, true}}) {
    const Inputs in = make_inputs(s, 7);
    ASSERT_TRUE(bit_equal(run(device, s, in), run(alone, s, in))) << describe(s);
  }
}

RECURVE_ON_EACH_DEVICE(LinearTest);
RECURVE_ON_CUDA(LinearTest);

}  // namespace
}  // namespace recurve::testing
