// RWKV-7's ops on every device against their formulas in double; recurrence_test.cc has the
// recurrence against the reference.
#include <gtest/gtest.h>

#include "tests/support/kernels/devices.h"
#include "tests/support/kernels/row_values.h"
#include "tests/support/kernels/rwkv_ops.h"

namespace recurve::testing::rwkv7_reference_test {

// The step form in double, row by row.
RecurrenceResult oracle(const Rwkv7Config& c, const Floats& rows, const Floats& start) {
  const int L = static_cast<int>(rows.size()) / c.width(), N = c.N;
  RecurrenceResult result{Floats(static_cast<size_t>(L) * c.H * N), Floats(start.size())};
  for (int head = 0; head < c.H; ++head) {
    const int64_t first = int64_t{head} * N * N;
    std::vector<double> S(start.begin() + first, start.begin() + first + N * N);
    for (int t = 0; t < L; ++t) {
      const auto at = [&](int array, int a) {
        return double{rows[static_cast<size_t>(t) * c.width() + c.column(array, head) + a]};
      };
      for (int d = 0; d < N; ++d) {
        double u = 0, o = 0;
        for (int a = 0; a < N; ++a) u -= at(4, a) * S[a * N + d];
        for (int a = 0; a < N; ++a) {
          S[a * N + d] =
              std::exp(at(1, a)) * S[a * N + d] + at(4, a) * at(5, a) * u + at(2, a) * at(3, d);
          o += at(0, a) * S[a * N + d];
        }
        result.y[(static_cast<size_t>(t) * c.H + head) * N + d] = static_cast<float>(o);
      }
    }
    std::copy(S.begin(), S.end(), result.state.begin() + first);
  }
  return result;
}

// Relative to the largest value: what may be off of outputs and states.
void expect_near(const Floats& found, const Floats& wanted, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(found.size(), wanted.size()) << what;
  double largest = 0, difference = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_TRUE(std::isfinite(found[i])) << what << " " << i;
    largest = std::max(largest, std::fabs(double{wanted[i]}));
    difference = std::max(difference, std::fabs(double{found[i]} - wanted[i]));
  }
  EXPECT_LE(difference, tolerance * largest) << what << ", largest value " << largest;
}

const char* const kRows[] = {"usual", "parallel keys", "decays at the bound", "slow", "zero keys"};

void expect_oracle(KernelDevice& device, Rwkv7Config c, int L, std::mt19937_64& random,
                   double tolerance = 5e-6) {
  const RecurrenceOp op = rwkv7_op(c);
  const Floats rows = op.inputs(L, random), start = op.start(random);
  const RecurrenceResult found = run_alone(device, op, rows, start);
  const RecurrenceResult wanted = oracle(c, rows, start);
  const std::string what =
      op.name + " L " + std::to_string(L) + " of " + kRows[static_cast<int>(c.rows)];
  expect_near(found.y, wanted.y, tolerance, what + ", outputs");
  expect_near(found.state, wanted.state, tolerance, what + ", state");
}

class Rwkv7Test : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string why = why_unusable(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
};

class Rwkv7FormsTest : public Rwkv7Test {};

TEST_P(Rwkv7FormsTest, AreTheStepsInDouble) {
  KernelDevice device(GetParam());
  std::mt19937_64 random(1);
  for (int rows = 0; rows < 5; ++rows) {
    for (const int chunk : {1, 2, 16, 64, 128}) {
      for (const int L : {1, 2, 17, 130}) {
        expect_oracle(device, {1, 64, chunk, static_cast<Rwkv7Rows>(rows), chunk > 16}, L, random);
      }
      expect_oracle(device, {3, 7, chunk, static_cast<Rwkv7Rows>(rows)}, 70, random);
    }
  }
}

// 4,096 rows: what is off does not grow with the length of a text.
TEST_P(Rwkv7FormsTest, StayTheStepsInDoubleOverALongText) {
  KernelDevice device(GetParam());
  std::mt19937_64 random(2);
  for (const Rwkv7Rows rows : {Rwkv7Rows::kUsual, Rwkv7Rows::kParallelKeys}) {
    expect_oracle(device, {1, 16, 64, rows}, 4096, random);
  }
}

// Next to no decay over 1,024 rows: states grow, and the sums of what is put in are long.
TEST_P(Rwkv7FormsTest, StayCloseWhereNothingFades) {
  KernelDevice device(GetParam());
  std::mt19937_64 random(3);
  expect_oracle(device, {1, 16, 64, Rwkv7Rows::kSlow}, 1024, random, 2e-5);
}

INSTANTIATE_TEST_SUITE_P(Devices, Rwkv7FormsTest, ::testing::ValuesIn(all_devices()),
                         [](const auto& info) { return test_name(info.param); });

// ---- the gate

struct Gate {
  Floats w, a, k, v, kk;
};

Gate run_gate(KernelDevice& device, int H, int N, const Gate& in, const Floats& k_k,
              const Floats& k_a, const Floats& v_first, const Floats& m) {
  const int rows = static_cast<int>(in.w.size()) / (H * N);
  const auto w = device.array(in.w), a = device.array(in.a), k = device.array(in.k);
  const auto v = device.array(in.v), kk = device.floats(in.w.size());
  const auto key = device.array(k_k), change = device.array(k_a);
  const auto first = device.array(v_first), mix = device.array(m);
  device.kernels().rwkv7_gate({.rows = rows,
                               .H = H,
                               .N = N,
                               .k_k = key.data(),
                               .k_a = change.data(),
                               .v_first = m.empty() ? nullptr : first.data(),
                               .m = m.empty() ? nullptr : mix.data(),
                               .w = w.data(),
                               .a = a.data(),
                               .k = k.data(),
                               .v = v.data(),
                               .kk = kk.data()},
                              *device.stream);
  for (const auto* array : {&w, &a, &k, &v, &kk}) EXPECT_TRUE(array->guards_intact());
  return {w.read(), a.read(), k.read(), v.read(), kk.read()};
}

Gate exact_gate(int H, int N, const Gate& in, const Floats& k_k, const Floats& k_a,
                const Floats& v_first, const Floats& m) {
  const size_t D = static_cast<size_t>(H) * N;
  Gate out = in;
  out.kk.resize(in.w.size());
  for (size_t at = 0; at < in.w.size(); ++at) {
    double squares = 0;
    const size_t head = at / N * N;
    for (size_t c = head; c < head + N; ++c) squares += square(double{in.k[c]} * k_k[c % D]);
    const double length = std::max(std::sqrt(squares), 1e-12);
    const double alpha = exact_sigmoid(in.a[at]);
    out.kk[at] = static_cast<float>(double{in.k[at]} * k_k[at % D] / length);
    out.w[at] = static_cast<float>(-std::exp(-0.5) * exact_sigmoid(in.w[at]));
    out.a[at] = static_cast<float>(alpha);
    out.k[at] = static_cast<float>(in.k[at] * (1 + (alpha - 1) * k_a[at % D]));
    if (m.empty()) continue;
    out.v[at] =
        static_cast<float>(in.v[at] + (double{v_first[at]} - in.v[at]) * exact_sigmoid(m[at]));
  }
  return out;
}

class Rwkv7GateTest : public Rwkv7Test {};

TEST_P(Rwkv7GateTest, IsTheFormula) {
  KernelDevice device(GetParam());
  std::mt19937_64 random(4);
  for (const auto& [rows, H, N] :
       {std::tuple{1, 1, 1}, {3, 2, 5}, {5, 3, 64}, {2, 1, 33}, {40, 12, 64}}) {
    const size_t D = static_cast<size_t>(H) * N, count = rows * D;
    const auto some = [&](size_t size, float deviation = 1) {
      return normal_floats(random, size, deviation);
    };
    Gate in = {some(count, 6), some(count, 6), some(count), some(count), {}};
    const Floats k_k = some(D), k_a = some(D), first = some(count), m = some(count, 6);
    for (const Floats& mix : {m, Floats()}) {
      const Gate found = run_gate(device, H, N, in, k_k, k_a, first, mix);
      const Gate wanted = exact_gate(H, N, in, k_k, k_a, first, mix);
      EXPECT_TRUE(close(found.w, wanted.w, kFewUlp)) << N;
      EXPECT_TRUE(close(found.a, wanted.a, kFewUlp)) << N;
      EXPECT_TRUE(close(found.kk, wanted.kk, kSummed)) << N;
      EXPECT_TRUE(close(found.k, wanted.k, kSummed)) << N;
      EXPECT_TRUE(close(found.v, wanted.v, kSummed)) << N;
      for (const float lw : found.w) EXPECT_TRUE(lw >= -0.60653067f && lw <= 0) << lw;
    }
  }
}

// Keys of no length are not divided by it, and short ones are not by more than themselves.
TEST_P(Rwkv7GateTest, AKeyOfLengthZeroStaysZero) {
  KernelDevice device(GetParam());
  const Floats ones(8, 1.0f), zeros(8);
  const Gate at_zero = run_gate(device, 1, 8, {zeros, zeros, zeros, ones, {}}, ones, ones, {}, {});
  EXPECT_TRUE(bit_equal(at_zero.kk, zeros));
  // Of 1e-14 each: of length 2.8e-14, so divided by 1e-12 and not by that.
  const Floats tiny(8, 1e-14f);
  const Gate found = run_gate(device, 1, 8, {zeros, zeros, tiny, ones, {}}, ones, ones, {}, {});
  EXPECT_TRUE(close(found.kk, Floats(8, 1e-2f), kFewUlp));
}

INSTANTIATE_TEST_SUITE_P(Devices, Rwkv7GateTest, ::testing::ValuesIn(all_devices()),
                         [](const auto& info) { return test_name(info.param); });

// ---- token shift and the norm with bonus

class Rwkv7RowsTest : public Rwkv7Test {};

TEST_P(Rwkv7RowsTest, TokenShiftMixesForEachReader) {
  KernelDevice device(GetParam());
  std::mt19937_64 random(5);
  const int D = 37, n = 6;
  // Two sequences: of rows 0 to 2 in slot 3, of row 3 in slot 1.
  const std::vector<int32_t> begin = {0, 3, 4}, slot = {3, 1};
  const Floats x = normal_floats(random, 4 * D), start = normal_floats(random, 4 * D);
  const Floats mu = normal_floats(random, static_cast<size_t>(n) * D);
  const auto begins = device.array(begin), slots = device.array(slot);
  const auto in = device.array(x), mixes = device.array(mu), state = device.array(start);
  const auto y = device.floats(static_cast<size_t>(n) * 4 * D);
  TokenShiftArgs args{.seqs = {.num_seqs = 2,
                               .rows = 4,
                               .max_len = 3,
                               .begin = begins.data(),
                               .slot = slots.data()},
                      .D = D,
                      .n = n,
                      .x_stride = D,
                      .x = in.data(),
                      .mu = {},
                      .state = state.data(),
                      .y = {}};
  for (int i = 0; i < n; ++i) {
    args.mu[i] = mixes.data() + int64_t{i} * D;
    args.y[i] = y.data() + int64_t{i} * 4 * D;
  }
  device.kernels().token_shift(args, *device.stream);
  Floats wanted;
  for (int i = 0; i < n; ++i) {
    for (int row = 0; row < 4; ++row) {
      const float* before = row == 0 ? &start[3 * D] : row == 3 ? &start[D] : &x[(row - 1) * D];
      for (int d = 0; d < D; ++d) {
        const double own = x[row * D + d];
        wanted.push_back(static_cast<float>(own + (before[d] - own) * mu[i * D + d]));
      }
    }
  }
  EXPECT_TRUE(y.guards_intact());
  EXPECT_TRUE(close(y.read(), wanted, {.absolute = 2e-6, .relative = 1e-6}));
  Floats after = start;
  std::copy_n(x.begin() + 2 * D, D, after.begin() + 3 * D);
  std::copy_n(x.begin() + 3 * D, D, after.begin() + D);
  EXPECT_TRUE(bit_equal(state.read(), after));
}

TEST_P(Rwkv7RowsTest, HeadNormBonusIsTheFormula) {
  KernelDevice device(GetParam());
  std::mt19937_64 random(6);
  for (const auto& [rows, H, N] : {std::tuple{1, 1, 2}, {3, 2, 5}, {2, 3, 64}, {30, 12, 64}}) {
    const size_t D = static_cast<size_t>(H) * N, count = rows * D;
    std::vector<Floats> x;
    for (int i = 0; i < 5; ++i) x.push_back(normal_floats(random, count));  // o, r, k, v, g
    for (int i = 0; i < 3; ++i) x.push_back(normal_floats(random, D));      // r_k, w, b
    Floats wanted;
    for (size_t at = 0; at < count; ++at) {
      const size_t head = at / N * N, d = at % D;
      double mean = 0, variance = 0, bonus = 0;
      for (size_t c = head; c < head + N; ++c) mean += double{x[0][c]} / N;
      for (size_t c = head; c < head + N; ++c) {
        variance += square(x[0][c] - mean) / N;
        bonus += double{x[1][c]} * x[2][c] * x[5][c % D];
      }
      const double normed = (x[0][at] - mean) / std::sqrt(variance + 64e-5) * x[6][d] + x[7][d];
      wanted.push_back(static_cast<float>((normed + bonus * x[3][at]) * x[4][at]));
    }
    std::vector<DeviceArray<float>> in;
    for (const Floats& values : x) in.push_back(device.array(values));
    const auto y = device.floats(count);
    HeadNormBonusArgs args{.rows = rows,
                           .H = H,
                           .N = N,
                           .eps = 64e-5f,
                           .o = in[0].data(),
                           .r = in[1].data(),
                           .k = in[2].data(),
                           .v = in[3].data(),
                           .g = in[4].data(),
                           .r_k = in[5].data(),
                           .w = in[6].data(),
                           .b = in[7].data(),
                           .y = y.data()};
    device.kernels().head_norm_bonus(args, *device.stream);
    EXPECT_TRUE(y.guards_intact());
    EXPECT_TRUE(close(y.read(), wanted, {.absolute = 2e-5, .relative = 1e-5})) << rows << " " << N;
    args.y = in[0].data();
    device.kernels().head_norm_bonus(args, *device.stream);
    EXPECT_TRUE(bit_equal(in[0].read(), y.read()));
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, Rwkv7RowsTest, ::testing::ValuesIn(all_devices()),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace recurve::testing::rwkv7_reference_test
