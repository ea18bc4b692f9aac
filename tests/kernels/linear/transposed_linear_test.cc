// Linear layers whose matrix stands column by column, for rows that are mostly zeros.
#include <gtest/gtest.h>

#include <limits>

#include "tests/kernels/linear/linear_case.h"
#include "tests/support/kernels/packed.h"

namespace recurve::testing::linear_test {
namespace {

// W column by column, as it is stored.
auto transposed_array(KernelDevice& device, const Shape& s, const std::vector<float>& W) {
  std::vector<float> transposed(W.size());
  for (int64_t n = 0; n < s.N; ++n) {
    for (int64_t k = 0; k < s.K; ++k) transposed[k * s.N + n] = W[n * s.K + k];
  }
  return device.array(stored(transposed, s.type));
}

std::vector<float> run_columns(KernelDevice& device, const Shape& s, const Inputs& in,
                               const void* W) {
  return run(device, s, in,
             Matrix{.dtype = s.type, .N = s.N, .K = s.K, .data = W, .transposed = true});
}

std::vector<float> run_transposed(KernelDevice& device, const Shape& s, const Inputs& in) {
  const auto W = transposed_array(device, s, in.W);
  return run_columns(device, s, in, W.data());
}

// The same bytes column by column.
Packed transposed(const Packed& rows) {
  Packed columns = rows;
  rows.format->transpose(rows.data.data(), rows.scales.data(), rows.N, rows.K, columns.data.data(),
                         columns.scales.data());
  return columns;
}

std::vector<float> run_packed(KernelDevice& device, const Shape& s, const Inputs& in,
                              const Packed& columns) {
  const auto data = device.array(columns.data), scales = device.array(columns.scales);
  Matrix W = columns.matrix(data.data(), scales.data());
  W.transposed = true;
  return run(device, s, in, W);
}

// Of the inputs x, a part is zero. Whole rows too, and whole columns.
Inputs sparse_inputs(const Shape& s, uint64_t seed, double zeros) {
  Inputs in = make_inputs(s, seed);
  std::mt19937_64 random(seed + 1);
  std::bernoulli_distribution is_zero(zeros);
  for (size_t i = 0; i < in.x.size(); ++i) {
    const size_t row = i / s.K, k = i % s.K;
    if (is_zero(random) || row % 5 == 4 || k % 7 == 3) in.x[i] = k % 2 == 0 ? 0.0f : -0.0f;
  }
  return in;
}

}  // namespace

class TransposedLinearTest : public DeviceTest {
 protected:
  void SetUp() override {
    if (device_.kernels().linear.transposed.empty()) GTEST_SKIP() << "takes no transposed matrices";
  }

  KernelDevice device_ = make_device();
};

TEST_P(TransposedLinearTest, MatchesTheReference) {
  KernelDevice reference("reference");
  for (const Shape& s : shapes()) {
    for (const double zeros : {0.0, 0.8}) {
      const Inputs in = sparse_inputs(s, 20, zeros);
      ASSERT_TRUE(close(run_transposed(device_, s, in), run(reference, s, in), tolerance_for(s.K)))
          << describe(s);
    }
  }
}

TEST_P(TransposedLinearTest, MatchesTheReferenceWithItsParts) {
  KernelDevice reference("reference");
  for (const Shape& s : fused_shapes(200)) {
    const Inputs in = sparse_inputs(s, 21, 0.5);
    ASSERT_TRUE(
        close(run_transposed(device_, s, in), run(reference, s, in), fused_tolerance_for(s)))
        << describe(s);
  }
}

// Outputs of several tasks, and K of several pieces.
TEST_P(TransposedLinearTest, MatchesTheReferenceWhenSplit) {
  KernelDevice reference("reference");
  for (const Shape& s :
       {Shape{1, 2300, 520, DType::kBF16, true, true}, Shape{4, 700, 1024, DType::kF32, true, true},
        Shape{31, 1500, 300, DType::kBF16, false, true},
        Shape{98, 1300, 517, DType::kBF16, true, false}}) {
    const Inputs in = sparse_inputs(s, 22, 0.7);
    ASSERT_TRUE(close(run_transposed(device_, s, in), run(reference, s, in), tolerance_for(s.K)))
        << describe(s);
  }
}

// Columns that are zero in all rows are not read: what cannot be multiplied with is not met there.
TEST_P(TransposedLinearTest, LeavesOutColumnsOfZeros) {
  for (const int rows : {1, 2, 4}) {
    const Shape s{rows, 70, 77, DType::kBF16, false, false};
    Inputs in = sparse_inputs(s, 23, 0.5);
    const std::vector<float> wanted = run_transposed(device_, s, in);
    for (int n = 0; n < s.N; ++n) {
      for (int k = 3; k < s.K; k += 7) {
        in.W[n * s.K + k] = std::numeric_limits<float>::quiet_NaN();
      }
    }
    EXPECT_TRUE(bit_equal(run_transposed(device_, s, in), wanted)) << describe(s);
  }
}

TEST_P(TransposedLinearTest, KeepsNanAndInfinityWhereTheyAre) {
  KernelDevice reference("reference");
  for (const int rows : {7, 99}) {
    const Shape s{rows, 19, 37, DType::kBF16, false, false};
    Inputs in = sparse_inputs(s, 24, 0.8);
    in.x[2 * s.K + 36] = std::numeric_limits<float>::quiet_NaN();
    in.x[3 * s.K + 3] = std::numeric_limits<float>::infinity();
    ASSERT_TRUE(close(run_transposed(device_, s, in), run(reference, s, in), tolerance_for(s.K)))
        << describe(s);
  }
}

// Also of rows that share columns which are zero in one of them alone.
TEST_P(TransposedLinearTest, RowsDoNotKnowEachOther) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const auto& [N, K] : {std::pair{50, 77}, {300, 640}, {1104, 300}}) {
      const Shape many{111, N, K, type, true, true, false};
      const Inputs in = sparse_inputs(many, 25, 0.6);
      const auto W = transposed_array(device_, many, in.W);
      const std::vector<float> all = run_columns(device_, many, in, W.data());
      for (const auto& [first, rows] : {std::pair{0, 1},
                                        {70, 1},
                                        {4, 1},
                                        {5, 2},
                                        {11, 3},
                                        {40, 4},
                                        {20, 5},
                                        {30, 16},
                                        {7, 31},
                                        {2, 95},
                                        {1, 97}}) {
        Shape few = many;
        few.rows = rows;
        const Inputs part = some_rows(many, in, first, rows);
        const std::vector<float> wanted(all.begin() + first * N, all.begin() + (first + rows) * N);
        ASSERT_TRUE(bit_equal(run_columns(device_, few, part, W.data()), wanted))
            << describe(few) << " from row " << first;
      }
    }
  }
}

TEST_P(TransposedLinearTest, ThreadsChangeNothing) {
  KernelDevice alone(GetParam().device, 1);
  for (const Shape& s :
       {Shape{1, 1000, 640, DType::kBF16, true, true}, Shape{64, 220, 200, DType::kF32, true, true},
        Shape{200, 130, 512, DType::kF32, false, true}}) {
    const Inputs in = sparse_inputs(s, 26, 0.7);
    ASSERT_TRUE(bit_equal(run_transposed(device_, s, in), run_transposed(alone, s, in)))
        << describe(s);
  }
}

// Packed weights: the bits of the fp32 layer over the values that they stand for. Outputs and
// columns that fill no vector, line or group; rows that walk columns and rows that widen them.
TEST_P(TransposedLinearTest, PackedHasTheBitsOfTheUnpackedMatrix) {
  for (const WeightFormat* format : packed_formats()) {
    if (!device_.kernels().linear.transposed.contains(format)) continue;
    for (const int K : {1, 63, 64, 65, 200, 1500}) {
      for (const int N : {1, 29, 32, 96, 160, 544}) {
        if (N % format->outputs_together != 0) continue;
        const Packed& rows_of_W = packed_normal(*format, N, K);
        const Packed columns = transposed(rows_of_W);
        for (const int rows : {1, 2, 3, 4, 5, 16, 95, 96}) {
          const Shape s{rows, N, K, DType::kF32, rows % 2 == 0, rows % 3 != 0};
          Inputs in = sparse_inputs(s, 27, rows % 4 == 0 ? 0 : 0.8);
          in.W = rows_of_W.unpacked;
          ASSERT_TRUE(
              bit_equal(run_packed(device_, s, in, columns), run_transposed(device_, s, in)))
              << format->name << " " << describe(s);
        }
      }
    }
  }
}

TEST_P(TransposedLinearTest, PackedMatchesTheReference) {
  KernelDevice reference("reference");
  for (const WeightFormat* format : packed_formats()) {
    if (!device_.kernels().linear.transposed.contains(format)) continue;
    const Packed& rows_of_W = packed_normal(*format, 96, 300);
    const Packed columns = transposed(rows_of_W);
    for (const int rows : {1, 6, 100}) {
      const Shape s{rows, 96, 300, DType::kF32, true, true, true};
      Inputs in = sparse_inputs(s, 28, 0.6);
      in.W = rows_of_W.unpacked;
      ASSERT_TRUE(
          close(run_packed(device_, s, in, columns), run(reference, s, in), fused_tolerance_for(s)))
          << format->name << " " << describe(s);
    }
  }
}

RECURVE_ON_EACH_DEVICE(TransposedLinearTest);

// The places that the headers of the formats name.
TEST(TransposedFormats, HaveEachValueInItsPlace) {
  const int64_t N = 96, K = 150, groups = 3;
  const Packed int8 = packed_normal(kInt8Weights, N, K), int4 = packed_normal(kInt4Weights, N, K);
  const Packed int8_columns = transposed(int8), int4_columns = transposed(int4);
  const auto bits = [](const Packed& of, size_t byte, int64_t shift) {
    return std::to_integer<int>(of.data[byte]) >> shift & 15;
  };
  for (int64_t n = 0; n < N; ++n) {
    for (int64_t k = 0; k < groups * 64; ++k) {
      ASSERT_EQ(int8_columns.data[k * N + n], int8.data[n * groups * 64 + k]) << n << ", " << k;
      // Bits 4 i to 4 i + 3 of word j of a group are column 16 i + j.
      const int64_t i = k % 64 / 16, j = k % 16;
      const int q = bits(int4, (n * groups + k / 64) * 32 + 2 * j + i / 2, 4 * (i % 2));
      ASSERT_EQ(bits(int4_columns, k * N / 2 + n / 32 * 16 + n % 16, n % 32 / 16 * 4), q)
          << n << ", " << k;
    }
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t b = 0; b < 2; ++b) {
        ASSERT_EQ(int8_columns.scales[(g * N + n) * 2 + b], int8.scales[(n * groups + g) * 2 + b]);
      }
      for (int64_t b = 0; b < 4; ++b) {
        ASSERT_EQ(int4_columns.scales[(g * N + n) * 4 + b], int4.scales[(n * groups + g) * 4 + b]);
      }
    }
  }
}

}  // namespace recurve::testing::linear_test
