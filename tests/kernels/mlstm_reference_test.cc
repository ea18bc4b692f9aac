// The reference cell against the parallel (quadratic) form of Beck et al. 2025, eq. 27 to 35, in
// double and without a running stabiliser, extended by a state to start from.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/compare.h"
#include "tests/support/mlstm_case.h"

namespace recurve::testing {
namespace {

// A head of a sequence in double.
struct Oracle {
  Oracle(const MlstmConfig& config, const MlstmRows& inputs, const MlstmState& state, int which)
      : c(config), rows(inputs), start(state), head(which) {
    double sum = 0;
    for (int t = 0; t < rows.L; ++t) {
      sum -= std::log1p(std::exp(-gate(rows.f[t * c.H + head])));
      i.push_back(gate(rows.i[t * c.H + head]));
      lf_sum.push_back(sum);
    }
  }

  const MlstmConfig& c;
  const MlstmRows& rows;
  const MlstmState& start;
  int head;
  std::vector<double> i, lf_sum;

  double gate(double x) const {
    return c.gate_soft_cap > 0 ? c.gate_soft_cap * std::tanh(x / c.gate_soft_cap) : x;
  }
  double q(int t, int a) const { return rows.q[(t * c.H + head) * c.DK + a] / std::sqrt(c.DK); }
  double k(int t, int a) const { return rows.k[(t * c.H + head) * c.DK + a]; }
  double v(int t, int d) const { return rows.v[(t * c.H + head) * c.DV + d]; }

  // log of the weight of token j at time t; j = -1 is the state at the start.
  double D(int t, int j) const {
    return j < 0 ? lf_sum[t] + start.m[head] : lf_sum[t] - lf_sum[j] + i[j];
  }
  double m(int t) const {
    double best = D(t, -1);
    for (int j = 0; j <= t; ++j) best = std::max(best, D(t, j));
    return best;
  }
  // q_t . n_t or row d of q_t^T C_t, not stabilised (d = -1: n).
  double read(int t, int d) const {
    double sum = 0;
    for (int a = 0; a < c.DK; ++a) {
      const double n = start.n[head * c.DK + a];
      const double value = d < 0 ? n : start.C[(head * c.DK + a) * c.DV + d];
      sum += q(t, a) * value * std::exp(D(t, -1));
    }
    for (int j = 0; j <= t; ++j) {
      double score = 0;
      for (int a = 0; a < c.DK; ++a) score += q(t, a) * k(j, a);
      sum += score * std::exp(D(t, j)) * (d < 0 ? 1 : v(j, d));
    }
    return sum;
  }
  // max(|q n| e^-m, e^-m) + eps, multiplied by e^m.
  double h(int t, int d) const {
    return read(t, d) / (std::max(std::fabs(read(t, -1)), 1.0) + c.eps * std::exp(m(t)));
  }
  double C(int t, int a, int d) const {
    double sum = start.C[(head * c.DK + a) * c.DV + d] * std::exp(D(t, -1) - m(t));
    for (int j = 0; j <= t; ++j) sum += k(j, a) * v(j, d) * std::exp(D(t, j) - m(t));
    return sum;
  }
  double n(int t, int a) const {
    double sum = start.n[head * c.DK + a] * std::exp(D(t, -1) - m(t));
    for (int j = 0; j <= t; ++j) sum += k(j, a) * std::exp(D(t, j) - m(t));
    return sum;
  }
};

MlstmResult oracle(const MlstmConfig& c, const MlstmRows& rows, const MlstmState& start) {
  MlstmResult result;
  const int last = rows.L - 1;
  for (int t = 0; t < rows.L; ++t) {
    for (int head = 0; head < c.H; ++head) {
      const Oracle o(c, rows, start, head);
      for (int d = 0; d < c.DV; ++d) result.h.push_back(static_cast<float>(o.h(t, d)));
    }
  }
  for (int head = 0; head < c.H; ++head) {
    const Oracle o(c, rows, start, head);
    result.state.m.push_back(static_cast<float>(o.m(last)));
    for (int a = 0; a < c.DK; ++a) {
      result.state.n.push_back(static_cast<float>(o.n(last, a)));
      for (int d = 0; d < c.DV; ++d) {
        result.state.C.push_back(static_cast<float>(o.C(last, a, d)));
      }
    }
  }
  return result;
}

// The exponents are sums of up to 40 values of up to 15, so they are off by up to 40 x 15 x 2^-24 =
// 4e-5 where all gates are saturated, and the weights by as much, relatively. h is a quotient that
// may cancel: a few times that.
constexpr Tolerance kTolerance = {.absolute = 1e-4, .relative = 1e-4};

void expect_close(const MlstmResult& found, const MlstmResult& wanted, const std::string& what) {
  EXPECT_TRUE(close(found.h, wanted.h, kTolerance)) << what << ": h";
  EXPECT_TRUE(close(found.state.C, wanted.state.C, kTolerance)) << what << ": C";
  EXPECT_TRUE(close(found.state.n, wanted.state.n, kTolerance)) << what << ": n";
  EXPECT_TRUE(close(found.state.m, wanted.state.m, kTolerance)) << what << ": m";
}

struct Case {
  std::string name;
  MlstmConfig config;
};

// (H, DK, DV, chunk, cap, eps, i mean, i deviation, f mean, f deviation)
const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      {"usual", {2, 8, 8, 4, 15, 1e-6f, 0, 3, 3, 2}},
      {"one_of_everything", {1, 1, 1, 5, 15, 1e-6f, 0, 3, 3, 2}},
      {"odd_sizes", {3, 5, 7, 16, 15, 1e-6f, 0, 3, 3, 2}},
      {"no_cap", {2, 8, 12, 8, 0, 1e-6f, 0, 3, 3, 2}},
      {"remembers_all", {2, 4, 6, 8, 15, 1e-6f, -2, 1, 60, 5}},
      {"forgets_at_once", {2, 4, 6, 8, 15, 1e-6f, 0, 2, -60, 5}},
      {"input_open", {2, 4, 6, 8, 15, 1e-6f, 60, 5, 3, 2}},
      {"input_shut", {2, 4, 6, 8, 15, 1e-6f, -60, 5, 3, 2}},
      {"large_eps", {2, 4, 6, 8, 15, 0.5f, 0, 3, 3, 2}},
      {"long_chunk", {1, 16, 16, 64, 15, 1e-6f, 0, 2, 4, 1}},
  };
  return kCases;
}

TEST(MlstmReference, StepFormIsTheParallelForm) {
  KernelDevice device("reference");
  std::mt19937_64 random(1);
  for (const Case& test : cases()) {
    MlstmConfig c = test.config;
    c.chunk = 1;
    const MlstmRows rows = random_rows(c, 21, random);
    for (const MlstmState& start : {zero_state(c), random_state(c, random)}) {
      expect_close(run_alone(device, c, rows, start), oracle(c, rows, start), test.name);
    }
  }
}

TEST(MlstmReference, ChunkFormIsTheParallelForm) {
  KernelDevice device("reference");
  std::mt19937_64 random(2);
  for (const Case& test : cases()) {
    for (const int L : {2, 8, 21, 40}) {
      const MlstmRows rows = random_rows(test.config, L, random);
      const MlstmState start = random_state(test.config, random);
      expect_close(run_alone(device, test.config, rows, start), oracle(test.config, rows, start),
                   test.name + " L " + std::to_string(L));
    }
  }
}

TEST(MlstmReference, ChunkFormIsTheStepForm) {
  KernelDevice device("reference");
  std::mt19937_64 random(3);
  for (const Case& test : cases()) {
    MlstmConfig step = test.config;
    step.chunk = 1;
    const MlstmRows rows = random_rows(step, 40, random);
    const MlstmState start = random_state(step, random);
    expect_close(run_alone(device, test.config, rows, start), run_alone(device, step, rows, start),
                 test.name);
  }
}

// By hand: H = DK = DV = 1, no cap, f so large that lf = 0, i = 0, from zero state.
// Token 1 (q 2, k 3, v 5): m = 0, C = 15, n = 3, h = 30 / (6 + eps) = 5.
// Token 2 (q 1, k 1, v 7): C = 22, n = 4, h = 22 / 4 = 5.5.
TEST(MlstmReference, ByHand) {
  KernelDevice device("reference");
  for (const int chunk : {1, 2}) {
    MlstmConfig c;
    c.H = c.DK = c.DV = 1;
    c.chunk = chunk;
    c.gate_soft_cap = 0;
    c.eps = 0;
    const MlstmRows rows{2, {2, 1}, {3, 1}, {5, 7}, {0, 0}, {200, 200}};
    const MlstmResult result = run_alone(device, c, rows, zero_state(c));
    EXPECT_EQ(result.h, (std::vector<float>{5, 5.5}));
    EXPECT_EQ(result.state.C, (std::vector<float>{22}));
    EXPECT_EQ(result.state.n, (std::vector<float>{4}));
    EXPECT_EQ(result.state.m, (std::vector<float>{0}));
  }
}

}  // namespace
}  // namespace recurve::testing
