// The reference cell against the parallel (quadratic) form of Beck et al. 2025, eq. 27 to 35, in
// double and without a running stabiliser, extended by a state to start from.
#include <gtest/gtest.h>

#include "tests/support/kernels/matrix_ops.h"

namespace recurve::testing::mlstm_reference_test {

using Floats = std::vector<float>;

// A head of a sequence in double.
struct Oracle {
  Oracle(const MlstmConfig& config, const Floats& inputs, const Floats& state, int which)
      : c(config), rows(inputs), start(state), head(which) {
    double sum = 0;
    for (int t = 0; t < static_cast<int>(rows.size()) / c.width(); ++t) {
      sum -= std::log1p(std::exp(-gate(at(t, c.f(head)))));
      i.push_back(gate(at(t, c.i(head))));
      lf_sum.push_back(sum);
    }
  }

  const MlstmConfig& c;
  const Floats& rows;
  const Floats& start;
  int head;
  std::vector<double> i, lf_sum;

  double at(int t, int column) const { return rows[static_cast<size_t>(t) * c.width() + column]; }
  double gate(double x) const {
    return c.gate_soft_cap > 0 ? c.gate_soft_cap * std::tanh(x / c.gate_soft_cap) : x;
  }
  double q(int t, int a) const { return at(t, c.q(head, a)) / std::sqrt(c.DK); }
  double k(int t, int a) const { return at(t, c.k(head, a)); }
  double v(int t, int d) const { return at(t, c.v(head, d)); }

  // log of the weight of token j at time t; j = -1 is the state at the start.
  double D(int t, int j) const {
    return j < 0 ? lf_sum[t] + start[c.m(head)] : lf_sum[t] - lf_sum[j] + i[j];
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
      const double value = start[d < 0 ? c.n(head, a) : c.C(head, a, d)];
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
    double sum = start[c.C(head, a, d)] * std::exp(D(t, -1) - m(t));
    for (int j = 0; j <= t; ++j) sum += k(j, a) * v(j, d) * std::exp(D(t, j) - m(t));
    return sum;
  }
  double n(int t, int a) const {
    double sum = start[c.n(head, a)] * std::exp(D(t, -1) - m(t));
    for (int j = 0; j <= t; ++j) sum += k(j, a) * std::exp(D(t, j) - m(t));
    return sum;
  }
};

RecurrenceResult oracle(const MlstmConfig& c, const Floats& rows, const Floats& start) {
  RecurrenceResult result{{}, start};
  const int L = static_cast<int>(rows.size()) / c.width(), last = L - 1;
  for (int t = 0; t < L; ++t) {
    for (int head = 0; head < c.H; ++head) {
      const Oracle o(c, rows, start, head);
      for (int d = 0; d < c.DV; ++d) result.y.push_back(static_cast<float>(o.h(t, d)));
    }
  }
  for (int head = 0; head < c.H; ++head) {
    const Oracle o(c, rows, start, head);
    result.state[c.m(head)] = static_cast<float>(o.m(last));
    for (int a = 0; a < c.DK; ++a) {
      result.state[c.n(head, a)] = static_cast<float>(o.n(last, a));
      for (int d = 0; d < c.DV; ++d) {
        result.state[c.C(head, a, d)] = static_cast<float>(o.C(last, a, d));
      }
    }
  }
  return result;
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
    const RecurrenceOp op = mlstm_op(c);
    const Floats rows = op.inputs(21, random);
    for (const Floats& start : {Floats(op.state_size()), op.start(random)}) {
      expect_close(run_alone(device, op, rows, start), oracle(c, rows, start), op.tolerance,
                   test.name);
    }
  }
}

TEST(MlstmReference, ChunkFormIsTheParallelForm) {
  KernelDevice device("reference");
  std::mt19937_64 random(2);
  for (const Case& test : cases()) {
    const RecurrenceOp op = mlstm_op(test.config);
    for (const int L : {2, 8, 21, 40}) {
      const Floats rows = op.inputs(L, random), start = op.start(random);
      expect_close(run_alone(device, op, rows, start), oracle(test.config, rows, start),
                   op.tolerance, test.name + " L " + std::to_string(L));
    }
  }
}

TEST(MlstmReference, ChunkFormIsTheStepForm) {
  KernelDevice device("reference");
  std::mt19937_64 random(3);
  for (const Case& test : cases()) {
    MlstmConfig one_row = test.config;
    one_row.chunk = 1;
    const RecurrenceOp op = mlstm_op(test.config), step = mlstm_op(one_row);
    const Floats rows = op.inputs(40, random), start = op.start(random);
    expect_close(run_alone(device, op, rows, start), run_alone(device, step, rows, start),
                 op.tolerance, test.name);
  }
}

// By hand: H = DK = DV = 1, no cap, f so large that lf = 0, i = 0, from zero state.
// Token 1 (q 2, k 3, v 5): m = 0, C = 15, n = 3, h = 30 / (6 + eps) = 5.
// Token 2 (q 1, k 1, v 7): C = 22, n = 4, h = 22 / 4 = 5.5.
TEST(MlstmReference, ByHand) {
  KernelDevice device("reference");
  for (const int chunk : {1, 2}) {
    MlstmConfig c{1, 1, 1, chunk};
    c.gate_soft_cap = 0;
    c.eps = 0;
    const RecurrenceResult result =
        run_alone(device, mlstm_op(c), {2, 3, 5, 0, 200, 1, 1, 7, 0, 200}, {0, 0, 0});
    EXPECT_EQ(result.y, (Floats{5, 5.5}));
    EXPECT_EQ(result.state, (Floats{22, 4, 0}));
  }
}

}  // namespace recurve::testing::mlstm_reference_test
