#include <gtest/gtest.h>

#include "tests/kernels/linear/linear_case.h"

namespace recurve::testing::linear_test {

TEST(LinearReference, IsTheFormula) {
  KernelDevice device("reference");
  for (const Shape& s : shapes()) {
    const Inputs in = make_inputs(s, 1);
    ASSERT_TRUE(close(run(device, s, in), naive(s, in), tolerance_for(s.K))) << describe(s);
  }
}

TEST(LinearReference, IsTheFormulaWithItsParts) {
  KernelDevice device("reference");
  for (const int K : {5, 64}) {
    for (const Shape& s : fused_shapes(K)) {
      const Inputs in = make_inputs(s, 1);
      ASSERT_TRUE(close(run(device, s, in), naive(s, in), fused_tolerance_for(s))) << describe(s);
    }
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

TEST_P(LinearTest, MatchesTheReferenceWithItsParts) {
  KernelDevice reference("reference"), device = make_device();
  for (const int K : {5, 64, 200}) {
    for (const Shape& s : fused_shapes(K)) {
      const Inputs in = make_inputs(s, 2);
      ASSERT_TRUE(close(run(device, s, in), run(reference, s, in), fused_tolerance_for(s)))
          << describe(s);
    }
  }
}

// Matrices that a GPU has other kernels for than for small ones: all numbers of rows that its tiles
// are cut for, ends of tiles and of K, K in one piece and in several.
class LargeLinearTest : public DeviceTest {};

TEST_P(LargeLinearTest, MatchesTheReference) {
  KernelDevice reference("reference"), device = make_device();
  for (const auto& [N, K] : {std::pair{512, 1024},
                             {8200, 64},
                             {130, 4096},
                             {1000, 536},
                             {65, 8200},
                             {40001, 16},
                             {20004, 40},
                             {4104, 136}}) {
    for (const int rows : {1, 7, 8, 9, 17, 33, 64, 70, 129, 257}) {
      const Shape s{rows, N, K, DType::kBF16, rows % 2 == 1, N % 2 == 0};
      const Inputs in = make_inputs(s, 10);
      ASSERT_TRUE(close(run(device, s, in), run(reference, s, in), tolerance_for(s.K)))
          << describe(s);
    }
  }
}

// Many rows, and K in one to eight pieces, which may end unevenly.
TEST_P(LargeLinearTest, MatchesTheReferenceWithManyRows) {
  KernelDevice reference("reference"), device = make_device();
  for (const auto& [N, K] :
       {std::pair{530, 1024}, {8200, 64}, {1600, 520}, {1600, 2056}, {2100, 4104}, {24001, 40}}) {
    for (const int rows : {66, 129, 192, 256, 300, 384, 513}) {
      constexpr int kLarge = 1 << 22;  // the reference takes long
      if (N * K > kLarge && rows != 129 && rows != 300) continue;
      const Shape s{rows, N, K, DType::kBF16, rows % 2 == 1, N % 4 == 0};
      const Inputs in = make_inputs(s, 13);
      ASSERT_TRUE(close(run(device, s, in), run(reference, s, in), tolerance_for(s.K)))
          << describe(s);
    }
  }
}

TEST_P(LargeLinearTest, MatchesTheReferenceWithItsParts) {
  KernelDevice reference("reference"), device = make_device();
  for (const auto& [N, K] :
       {std::pair{530, 1024}, {8200, 72}, {20000, 40}, {132, 4096}, {1608, 2056}}) {
    for (Shape s : fused_shapes(K)) {
      if (s.type == DType::kF32 || s.N != 8) continue;
      if (N > 10000 && s.norm) continue;  // more values than its tolerance is for
      s.N = N;
      if (s.rows == 3) s.rows = 140;
      if (s.rows == 9) s.rows = 300;
      const Inputs in = make_inputs(s, 11);
      ASSERT_TRUE(close(run(device, s, in), run(reference, s, in), fused_tolerance_for(s)))
          << describe(s);
    }
  }
}

// What one layer hands on to the next in bf16 is what the next would have made of it.
TEST_P(LargeLinearTest, HandsOnInBfloat) {
  KernelDevice device = make_device();
  for (const bool swiglu : {false, true}) {
    for (const int rows : {1, 9, 70, 300, 2100}) {
      const Shape s{rows, 1104, 1056, DType::kBF16, true, false, false, swiglu};
      const Inputs in = make_inputs(s, 12);
      const auto W = device.array(stored(in.W, s.type));
      const auto bias = device.array(in.bias), x = device.array(in.x);
      const auto y = device.array(std::vector<uint16_t>(static_cast<size_t>(rows) * s.outputs()));
      LinearArgs args{
          .rows = rows, .W = {s.type, s.N, s.K, W.data()}, .bias = bias.data(), .swiglu = swiglu};
      if (!device.kernels().linear.takes_bf16(args.W)) GTEST_SKIP() << "nothing is rounded here";
      const auto x_bf16 = device.array(stored(in.x, DType::kBF16));
      args.x_bf16 = x_bf16.data();
      args.y_bf16 = y.data();
      device.kernels().linear(args, *device.stream);
      EXPECT_TRUE(y.guards_intact());
      ASSERT_EQ(y.read(), stored(run(device, s, in), DType::kBF16)) << describe(s);
    }
  }
}

// A norm that the layer before defers to the next is the one that the next would have made alone.
TEST_P(LargeLinearTest, GoesOnWithANorm) {
  KernelDevice device = make_device();
  const LinearOp& linear = device.kernels().linear;
  for (const auto& [width, K] : {std::pair{2560, 640}, {2056, 4104}, {1096, 1024}, {520, 8200}}) {
    for (const int rows : {1, 2, 3, 5, 8, 9, 17, 40, 64}) {
      const Shape before{rows, width, K, DType::kBF16, true, true};
      const Shape after{rows, 2104, width, DType::kBF16, true, false, true, rows % 2 == 0};
      const Inputs in = make_inputs(before, 14), next = make_inputs(after, 15);
      const auto W = device.array(stored(in.W, before.type));
      const auto W_next = device.array(stored(next.W, after.type));
      const auto bias = device.array(in.bias), residual = device.array(in.residual);
      const auto x = device.array(in.x), bias_next = device.array(next.bias);
      const auto norm = device.array(next.norm);
      const size_t values = static_cast<size_t>(rows) * width;
      const auto y = device.floats(values),
                 squares = device.floats(values / DeferredRmsNorm::kSquares);
      const auto scales = device.array(std::vector<float>(rows, 5.0f));  // another step's
      const auto deferred = device.array(std::vector<uint16_t>(values));
      const auto z = device.floats(static_cast<size_t>(rows) * after.outputs());
      const Matrix matrix{before.type, before.N, before.K, W.data()};
      const Matrix matrix_next{after.type, after.N, after.K, W_next.data()};
      if (!linear.defers_norm(matrix, matrix_next, rows))
        GTEST_SKIP() << "no norm is deferred here";
      EXPECT_FALSE(linear.defers_norm(matrix, matrix_next, 65));
      linear({.rows = rows,
              .W = matrix,
              .bias = bias.data(),
              .residual = residual.data(),
              .x = x.data(),
              .y = y.data(),
              .next_norm = norm.data(),
              .next = {deferred.data(), squares.data(), scales.data()}},
             *device.stream);
      linear({.rows = rows,
              .W = matrix_next,
              .bias = bias_next.data(),
              .y = z.data(),
              .norm = norm.data(),
              .norm_eps = 1e-5f,
              .swiglu = after.swiglu,
              .deferred = {deferred.data(), squares.data(), scales.data()}},
             *device.stream);
      EXPECT_TRUE(y.guards_intact() && deferred.guards_intact() && squares.guards_intact() &&
                  scales.guards_intact());
      Inputs alone = next;
      alone.x = y.read();
      ASSERT_TRUE(bit_equal(alone.x, run(device, before, in, W.data()))) << describe(before);
      ASSERT_TRUE(bit_equal(z.read(), run(device, after, alone, W_next.data()))) << describe(after);
    }
  }
}

// Also one of more rows than layers defer the norm of: what other ops leave of these.
TEST_P(LargeLinearTest, GoesOnWithANormOfManyRows) {
  KernelDevice device = make_device();
  const LinearOp& linear = device.kernels().linear;
  constexpr int kSquares = DeferredRmsNorm::kSquares;
  for (const int rows : {65, 300, 1030}) {
    const Shape s{rows, 1600, 2560, DType::kBF16, true, false, true};
    const Inputs in = make_inputs(s, 18);
    const auto W = device.array(stored(in.W, s.type));
    const Matrix matrix{s.type, s.N, s.K, W.data()};
    if (!linear.takes_deferred_norm(matrix)) GTEST_SKIP() << "no norm is deferred here";
    std::vector<float> weighted(in.x.size()), sums(in.x.size() / kSquares);
    for (size_t i = 0; i < in.x.size(); ++i) weighted[i] = in.x[i] * in.norm[i % s.K];
    for (size_t i = 0; i < in.x.size(); i += 4) {
      float sum = in.x[i] * in.x[i];
      for (int j = 1; j < 4; ++j) sum = std::fma(in.x[i + j], in.x[i + j], sum);
      sums[i / kSquares] += sum;
    }
    const auto deferred = device.array(stored(weighted, DType::kBF16));
    const auto squares = device.array(sums), norm = device.array(in.norm);
    const auto scales = device.array(std::vector<float>(rows)), bias = device.array(in.bias);
    const auto y = device.floats(static_cast<size_t>(rows) * s.outputs());
    linear({.rows = rows,
            .W = matrix,
            .bias = bias.data(),
            .y = y.data(),
            .norm = norm.data(),
            .norm_eps = 1e-5f,
            .deferred = {deferred.data(), squares.data(), scales.data()}},
           *device.stream);
    ASSERT_TRUE(bit_equal(y.read(), run(device, s, in, W.data()))) << describe(s);
  }
}

// With so many rows that a block computes several tiles: K in one to eight pieces, tiles that end
// after the rows and the outputs, and everything that may be fused with the product. A row has the
// same bits as in a small batch.
TEST_P(LargeLinearTest, ManyRowsAreAsFew) {
  KernelDevice device = make_device();
  const Shape wide{2300, 15400, 264, DType::kBF16, true, false, true};
  const Shape gated{1100, 15424, 520, DType::kBF16, true, false, true, true};
  for (const Shape& s : {wide, gated, Shape{257, 15300, 136, DType::kBF16, true, true},
                         Shape{777, 10248, 1032, DType::kBF16, true, false, true},
                         Shape{2049, 7684, 1160, DType::kBF16, false, true},
                         Shape{1024, 4100, 2056, DType::kBF16, true, true, true},
                         Shape{513, 4096, 2560, DType::kBF16, false, false},
                         Shape{8192, 1032, 520, DType::kBF16, true, false, true},
                         Shape{1500, 2572, 4104, DType::kBF16, true, true},
                         Shape{900, 9999, 1024, DType::kBF16, true, true},
                         Shape{600, 15360, 128, DType::kBF16, true, false, false, false, 0.5f}}) {
    const Inputs in = make_inputs(s, 16);
    const auto W = device.array(stored(in.W, s.type));
    const std::vector<float> all = run(device, s, in, W.data());
    constexpr int kFew = 200;
    for (int first = 0; first < s.rows; first += kFew) {
      Shape few = s;
      few.rows = std::min(kFew, s.rows - first);
      const auto begin = all.begin() + int64_t{first} * s.outputs();
      const std::vector<float> wanted(begin, begin + int64_t{few.rows} * s.outputs());
      const Inputs part = some_rows(s, in, first, few.rows);
      ASSERT_TRUE(bit_equal(run(device, few, part, W.data()), wanted))
          << describe(s) << " from row " << first;
    }
  }
}

// What is added to in place, and bf16 on both sides.
TEST_P(LargeLinearTest, ManyRowsInPlaceAndInBfloat) {
  KernelDevice device = make_device();
  for (const auto& [N, K] : {std::pair{15400, 264}, {8200, 1032}, {4100, 2056}, {2572, 4104}}) {
    const Shape s{700, N, K, DType::kBF16, true, true};
    const Inputs in = make_inputs(s, 17);
    const auto W = device.array(stored(in.W, s.type));
    const auto x = device.array(in.x), bias = device.array(in.bias), y = device.array(in.residual);
    LinearArgs args{.rows = s.rows, .W = {s.type, N, K, W.data()}, .bias = bias.data()};
    args.x = x.data();
    args.residual = args.y = y.data();
    device.kernels().linear(args, *device.stream);
    EXPECT_TRUE(y.guards_intact());
    ASSERT_TRUE(bit_equal(y.read(), run(device, s, in, W.data()))) << describe(s);
    if (!device.kernels().linear.takes_bf16(args.W)) continue;
    const Shape alone{s.rows, N, K, s.type, true, false};
    const auto x_bf16 = device.array(stored(in.x, DType::kBF16));
    const auto y_bf16 = device.array(std::vector<uint16_t>(in.residual.size()));
    args.x = args.residual = args.y = nullptr;
    args.x_bf16 = x_bf16.data();
    args.y_bf16 = y_bf16.data();
    device.kernels().linear(args, *device.stream);
    EXPECT_TRUE(y_bf16.guards_intact());
    ASSERT_EQ(y_bf16.read(), stored(run(device, alone, in, W.data()), DType::kBF16)) << describe(s);
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LargeLinearTest);
RECURVE_ON_CUDA(LargeLinearTest);

// Activations as they come: a device may round them to bf16, an error as in fused_tolerance_for.
TEST_P(LinearTest, RoundsActivationsToBfloatAtMost) {
  KernelDevice reference("reference"), device = make_device();
  const Shape s{20, 520, 1024, DType::kBF16, false, false};
  Inputs in = make_inputs(s, 8);
  std::mt19937_64 random(9);
  in.x = normal_floats(random, in.x.size());
  const Tolerance tolerance{.absolute = 0x1p-9 * 0.58 * 6, .relative = 0, .angle = 1e-5};
  ASSERT_TRUE(close(run(device, s, in), run(reference, s, in), tolerance));
}

// Large enough to be split over threads and to leave the cache's block of outputs.
TEST_P(LinearTest, MatchesTheReferenceWhenSplit) {
  KernelDevice reference("reference"), device = make_device();
  for (const Shape& s : {Shape{2, 700, 1024, DType::kF32, true, true},
                         Shape{130, 24, 512, DType::kBF16, true, false},
                         Shape{9, 300, 4096, DType::kBF16, true, true},
                         Shape{3, 130, 1544, DType::kBF16, false, false, false, true},
                         Shape{300, 136, 1096, DType::kBF16, true, true}}) {
    const Inputs in = make_inputs(s, 3);
    ASSERT_TRUE(close(run(device, s, in), run(reference, s, in), tolerance_for(s.K)))
        << describe(s);
  }
}

TEST_P(LinearTest, ResidualMayBeTheOutput) {
  KernelDevice device = make_device();
  for (const auto& [rows, K] : {std::pair{9, 40}, {40, 1100}}) {
    const Shape s{rows, 33, K, DType::kBF16, true, true};
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
    EXPECT_TRUE(bit_equal(y.read(), run(device, s, in))) << describe(s);
  }
}

TEST_P(LinearTest, KeepsNanAndInfinityWhereTheyAre) {
  KernelDevice reference("reference"), device = make_device();
  for (const int rows : {7, 30}) {
    const Shape s{rows, 19, 37, DType::kBF16, false, false};
    Inputs in = make_inputs(s, 5);
    in.x[2 * s.K + 36] = std::numeric_limits<float>::quiet_NaN();
    in.x[4 * s.K + 1] = std::numeric_limits<float>::infinity();
    in.W[5 * s.K + 3] = -std::numeric_limits<float>::infinity();
    ASSERT_TRUE(close(run(device, s, in), run(reference, s, in), tolerance_for(s.K)))
        << describe(s);
  }
}

// A row's result is its own: the same bits alone, among others, anywhere among them.
TEST_P(LinearTest, RowsDoNotKnowEachOther) {
  KernelDevice device = make_device();
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const auto& [N, K] : {std::pair{50, 77},
                               {300, 640},
                               {232, 2304},
                               {36, 4200},
                               {1104, 1056},
                               {1608, 2056},
                               {2100, 4104},
                               {4100, 1024},
                               {20004, 40},
                               {35004, 64}}) {
      // Many outputs make a difference to devices that cut W by the number of rows.
      if (N > 1500 && (type == DType::kF32 || GetParam().device == "reference")) continue;
      const Shape many{K > 1000 || N > 1500 ? 300 : 111, N, K, type, true, true, true};
      const Inputs in = make_inputs(many, 6);
      const auto W = device.array(stored(in.W, type));
      const std::vector<float> all = run(device, many, in, W.data());
      for (const auto& [first, rows] : {std::pair{0, 1},
                                        {70, 1},
                                        {33, 1},
                                        {5, 2},
                                        {11, 3},
                                        {40, 4},
                                        {20, 5},
                                        {1, 6},
                                        {30, 16},
                                        {7, 9},
                                        {2, 33},
                                        {9, 61},
                                        {1, 65},
                                        {1, 70},
                                        {100, 200},
                                        {40, 129}}) {
        if (first + rows > many.rows) continue;
        Shape few = many;
        few.rows = rows;
        const Inputs part = some_rows(many, in, first, rows);
        const std::vector<float> wanted(all.begin() + first * N, all.begin() + (first + rows) * N);
        ASSERT_TRUE(bit_equal(run(device, few, part, W.data()), wanted))
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

}  // namespace recurve::testing::linear_test
