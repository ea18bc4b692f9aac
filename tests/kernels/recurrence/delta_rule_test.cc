// The delta rule and its gates on every device that has them against their formulas in double;
// recurrence_test.cc has the rule against the reference.
#include <gtest/gtest.h>

#include "tests/support/kernels/delta_ops.h"
#include "tests/support/kernels/devices.h"
#include "tests/support/kernels/row_values.h"

namespace recurve::testing::delta_rule_test {

// The step form in double, row by row.
RecurrenceResult oracle(const DeltaConfig& c, const Floats& rows, const Floats& start) {
  const int L = static_cast<int>(rows.size()) / c.width(), DK = c.DK, DV = c.DV;
  RecurrenceResult result{Floats(static_cast<size_t>(L) * c.H() * DV), Floats(start.size())};
  for (int head = 0; head < c.H(); ++head) {
    const int64_t first = int64_t{head} * DK * DV;
    std::vector<double> S(start.begin() + first, start.begin() + first + DK * DV);
    for (int t = 0; t < L; ++t) {
      const float* row = &rows[static_cast<size_t>(t) * c.width()];
      const float *q = row + head / c.heads_each * DK, *k = q + c.k_at();
      const float* v = row + c.v_at() + head * DV;
      const float* g = row + c.g_at() + (c.decay == DeltaDecay::kChannel ? head * DK : head);
      for (int a = 0; a < DK; ++a) {
        const double decay = c.decay == DeltaDecay::kNone      ? 1
                             : c.decay == DeltaDecay::kChannel ? std::exp(double{g[a]})
                                                               : std::exp(double{*g});
        for (int d = 0; d < DV; ++d) S[a * DV + d] *= decay;
      }
      for (int d = 0; d < DV; ++d) {
        double held = 0, o = 0;
        for (int a = 0; a < DK; ++a) held += k[a] * S[a * DV + d];
        const double u = row[c.beta_at() + head] * (v[d] - held);
        for (int a = 0; a < DK; ++a) {
          S[a * DV + d] += k[a] * u;
          o += q[a] * S[a * DV + d] / std::sqrt(double{1.0 * DK});
        }
        result.y[(static_cast<size_t>(t) * c.H() + head) * DV + d] = static_cast<float>(o);
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

void expect_oracle(KernelDevice& device, const DeltaConfig& c, int L, std::mt19937_64& random,
                   double tolerance = 5e-6) {
  const RecurrenceOp op = delta_rule_op(c);
  const Floats rows = op.inputs(L, random), start = op.start(random);
  const RecurrenceResult found = run_alone(device, op, rows, start);
  const RecurrenceResult wanted = oracle(c, rows, start);
  const std::string what = op.name + " L " + std::to_string(L);
  expect_near(found.y, wanted.y, tolerance, what + ", outputs");
  expect_near(found.state, wanted.state, tolerance, what + ", state");
}

constexpr DeltaDecay kDecays[] = {DeltaDecay::kNone, DeltaDecay::kToken, DeltaDecay::kChannel};
constexpr DeltaRows kRows[] = {
    DeltaRows::kUsual, DeltaRows::kParallelKeys, DeltaRows::kTwice,   DeltaRows::kForgetful,
    DeltaRows::kSlow,  DeltaRows::kZeroKeys,     DeltaRows::kBetaZero};

class DeltaRuleTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string why = why_unusable(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_P(DeltaRuleTest, FormsAreTheStepsInDouble) {
  KernelDevice device(GetParam());
  std::mt19937_64 random(1);
  for (const DeltaDecay decay : kDecays) {
    for (const DeltaRows rows : kRows) {
      for (const int chunk : {1, 2, 16, 64, 128}) {
        // Where nothing is put in, exp of a sum of up to 130 decays is all that is left, and the
        // rounding of that sum all that is off. With beta near 2 and keys that are all but parallel
        // every row turns about what the one before it left, so that roundings stay as they are.
        const bool keeps = rows == DeltaRows::kZeroKeys || rows == DeltaRows::kBetaZero ||
                           rows == DeltaRows::kTwice;
        const double tolerance = keeps ? 2e-5 : 5e-6;
        for (const int L : {1, 2, 17, 130}) {
          expect_oracle(device, {1, 1, 16, 24, chunk, decay, rows}, L, random, tolerance);
        }
        expect_oracle(device, {2, 3, 7, 5, chunk, decay, rows}, 70, random, tolerance);
      }
    }
    // Heads of each number of keys that a GPU has a form for, with rests of keys and columns.
    expect_oracle(device, {1, 2, 64, 70, 64, decay}, 66, random);
    expect_oracle(device, {1, 1, 128, 64, 64, decay, DeltaRows::kUsual, true}, 97, random);
    expect_oracle(device, {1, 1, 100, 66, 64, decay}, 97, random);
    expect_oracle(device, {1, 2, 256, 96, 64, decay, DeltaRows::kParallelKeys, true}, 97, random);
    expect_oracle(device, {1, 1, 161, 35, 64, decay}, 97, random);
  }
}

// Of tiles whose products are rounded to bf16: the most that may be off, of the largest value.
// Keys, what is missing of values, the inverse and what it finds are each rounded by up to 2^-9,
// and count twice where keys are all but parallel.
double tolerance_of_tiles(const DeltaConfig& c) {
  constexpr double kRounding = 1.0 / 512;
  return (c.rows == DeltaRows::kParallelKeys ? 16 : 8) * kRounding;
}

// Of products that are not: sums of DK products in fp32, whose roundings stay where beta is near 2
// and keys are all but parallel, as every row turns about what the one before it left.
double tolerance_of_exact(const DeltaConfig& c, int L) {
  return c.rows == DeltaRows::kTwice ? L * std::sqrt(c.DK) * 0x1p-24 : 2e-5;
}

// Heads that fill tiles, which a device may round to bf16 unless beta may be above 1.
TEST_P(DeltaRuleTest, TilesAreTheStepsInDouble) {
  KernelDevice device(GetParam());
  std::mt19937_64 random(5);
  for (const DeltaDecay decay : {DeltaDecay::kNone, DeltaDecay::kToken}) {
    for (const DeltaRows rows : kRows) {
      const bool all = rows == DeltaRows::kUsual || rows == DeltaRows::kTwice;
      for (const int DK : all ? std::vector{64, 128, 256} : std::vector{64}) {
        const DeltaConfig c{1, 4, DK, 64, 64, decay, rows, true};
        const bool rounds = delta_rule_op(c).rounds(device.kernels());
        constexpr int kL = 130;
        expect_oracle(device, c, kL, random,
                      rounds ? tolerance_of_tiles(c) : tolerance_of_exact(c, kL));
      }
    }
  }
}

// In chunks of 32 rows they are exact.
TEST_P(DeltaRuleTest, HeadsThatWouldFillTilesAreExactInShortChunks) {
  KernelDevice device(GetParam());
  std::mt19937_64 random(6);
  for (const DeltaDecay decay : {DeltaDecay::kNone, DeltaDecay::kToken}) {
    expect_oracle(device, {1, 4, 128, 64, 32, decay, DeltaRows::kUsual, true}, 97, random);
  }
}

// 4,096 rows: what is off does not grow with the length of a text.
TEST_P(DeltaRuleTest, FormsStayTheStepsOverALongText) {
  KernelDevice device(GetParam());
  std::mt19937_64 random(2);
  for (const DeltaDecay decay : kDecays) {
    for (const DeltaRows rows : {DeltaRows::kUsual, DeltaRows::kParallelKeys}) {
      expect_oracle(device, {1, 1, 8, 8, 64, decay, rows}, 4096, random, 1e-5);
    }
  }
}

// Value heads share the queries and keys of their group, each with its own decays: the same as
// with a copy of the group's queries and keys for each head.
TEST_P(DeltaRuleTest, HeadsOfAGroupShareQueriesAndKeys) {
  KernelDevice device(GetParam());
  std::mt19937_64 random(3);
  const DeltaConfig shared{2, 3, 8, 5, 4}, alone{6, 1, 8, 5, 4};
  const RecurrenceOp op = delta_rule_op(shared), other = delta_rule_op(alone);
  const int L = 11;
  const Floats rows = op.inputs(L, random), start = op.start(random);
  Floats repeated;
  for (int t = 0; t < L; ++t) {
    const float* row = &rows[static_cast<size_t>(t) * shared.width()];
    for (int array = 0; array < 2; ++array) {
      for (int head = 0; head < shared.H(); ++head) {
        const float* from = row + array * shared.k_at() + head / 3 * shared.DK;
        repeated.insert(repeated.end(), from, from + shared.DK);
      }
    }
    repeated.insert(repeated.end(), row + shared.v_at(), row + shared.width());
  }
  expect_same_bits(run_alone(device, op, rows, start), run_alone(device, other, repeated, start),
                   op.name);
}

// ---- the gates

struct Gates {
  Floats q, k, beta, g;
};

Gates run_gates(KernelDevice& device, DeltaGateArgs args, const Gates& in, const Floats& b,
                const Floats& a, const Floats& A, const Floats& dt_bias) {
  const auto q = device.array(in.q), k = device.array(in.k), b_array = device.array(b);
  const auto a_array = device.array(a), A_array = device.array(A), bias = device.array(dt_bias);
  const size_t rows = args.rows, H = args.H;
  const auto beta = device.floats(rows * H), g = device.floats(rows * H * args.decays);
  args.qk_stride = args.HK * args.DK;
  args.b_stride = args.H;
  args.a_stride = args.H * args.decays;
  args.b = b.empty() ? nullptr : b_array.data();
  args.a = a_array.data();
  args.A = A_array.data();
  args.dt_bias = bias.data();
  args.q = q.data();
  args.k = k.data();
  args.beta = beta.data();
  args.g = args.decays == 0 ? nullptr : g.data();
  device.kernels().delta_gate(args, *device.stream);
  for (const auto* array : {&q, &k, &beta, &g}) EXPECT_TRUE(array->guards_intact());
  return {q.read(), k.read(), beta.read(), g.read()};
}

Floats normed(const Floats& x, int DK, DeltaNorm norm, double eps) {
  Floats out;
  for (size_t at = 0; at < x.size(); ++at) {
    const size_t head = at / DK * DK;
    double squares = 0, sum = 0;
    for (size_t c = head; c < head + DK; ++c) {
      squares += double{x[c]} * x[c];
      sum += x[c];
    }
    const double divisor = norm == DeltaNorm::kSum ? sum : std::sqrt(squares + eps);
    out.push_back(static_cast<float>(x[at] / divisor));
  }
  return out;
}

TEST_P(DeltaRuleTest, GatesAreTheFormula) {
  KernelDevice device(GetParam());
  std::mt19937_64 random(4);
  for (const DeltaNorm norm : {DeltaNorm::kLength, DeltaNorm::kSum}) {
    for (const auto& [rows, H, HK, DK, channels] : {std::tuple{1, 1, 1, 1, false},
                                                    {3, 4, 2, 5, false},
                                                    {7, 6, 3, 64, false},
                                                    {2, 2, 2, 33, true},
                                                    {5, 3, 3, 16, true}}) {
      for (const bool fades : {true, false}) {
        const int decays = !fades ? 0 : channels ? DK : 1;
        const size_t n = rows, heads = H;
        // Sums of positive values, so that none is near zero.
        Gates in;
        for (Floats* x : {&in.q, &in.k}) {
          *x = normal_floats(random, n * HK * DK);
          if (norm == DeltaNorm::kSum) {
            for (float& value : *x) value = std::fabs(value) + 0.1f;
          }
        }
        const Floats b = fades ? normal_floats(random, n * heads, 4) : Floats();
        const Floats a = normal_floats(random, n * heads * decays, 12);
        const Floats bias = normal_floats(random, heads * decays);
        Floats A = normal_floats(random, heads);
        for (float& value : A) value = -std::exp(value);
        const Gates found = run_gates(device,
                                      {.rows = rows,
                                       .H = H,
                                       .HK = HK,
                                       .DK = DK,
                                       .decays = decays,
                                       .norm = norm,
                                       .eps = 1e-2f,
                                       .beta_scale = 2},
                                      in, b, a, A, bias);
        EXPECT_TRUE(close(found.q, normed(in.q, DK, norm, 1e-2), kSummed)) << DK;
        EXPECT_TRUE(close(found.k, normed(in.k, DK, norm, 1e-2), kSummed)) << DK;
        Floats beta, g;
        for (size_t i = 0; i < n * heads; ++i) {
          beta.push_back(b.empty() ? 2 : static_cast<float>(2 * exact_sigmoid(b[i])));
        }
        for (size_t i = 0; i < a.size(); ++i) {
          const double x = double{a[i]} + bias[i % bias.size()];
          const double soft = x > 20 ? x : std::log1p(std::exp(x));
          g.push_back(static_cast<float>(A[i / decays % heads] * soft));
        }
        EXPECT_TRUE(close(found.beta, beta, kFewUlp));
        EXPECT_TRUE(close(found.g, g, kSummed));
      }
    }
  }
}

// eps stands under the root: a key of no length stays zero, and a short one is not stretched to 1.
TEST_P(DeltaRuleTest, AKeyOfLengthZeroStaysZero) {
  KernelDevice device(GetParam());
  Gates in{Floats(8), Floats(8, 1e-4f), {}, {}};
  const Gates found = run_gates(device,
                                {.rows = 1,
                                 .H = 1,
                                 .HK = 1,
                                 .DK = 8,
                                 .decays = 0,
                                 .norm = DeltaNorm::kLength,
                                 .eps = 1e-6f,
                                 .beta_scale = 1},
                                in, {}, {}, {-1.0f}, {});
  EXPECT_TRUE(bit_equal(found.q, Floats(8)));
  EXPECT_TRUE(close(found.k, Floats(8, 1e-4f / std::sqrt(1.08e-6f)), kSummed));
  EXPECT_TRUE(bit_equal(found.beta, Floats(1, 1.0f)));
}

INSTANTIATE_TEST_SUITE_P(Devices, DeltaRuleTest, ::testing::ValuesIn(all_devices()),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace recurve::testing::delta_rule_test
