// Decaying outer products: the reference against the parallel (quadratic) form in double.
#include <gtest/gtest.h>

#include "tests/support/kernels/matrix_ops.h"

namespace recurve::testing::gla_reference_test {

using Floats = std::vector<float>;

// The parallel form of Yang et al. 2023, eq. 12, in double and extended by a state to start from:
// the weight of row j at row t is the product of the decays between them.
struct Oracle {
  const GlaConfig& c;
  const RecurrenceOp& op;
  const Floats& rows;
  const Floats& start;
  int head;

  double at(int t, int column) const { return rows[static_cast<size_t>(t) * c.width() + column]; }
  double g(int t, int a) const {
    if (c.decay == GlaDecay::kNone) return 0;
    if (c.decay == GlaDecay::kHead) return op.weights[0][head];
    return at(t, c.g(c.decay == GlaDecay::kChannel ? head * c.DK + a : head));
  }
  // Product of the decays of channel a after row j up to row t; j = -1 is the state at the start.
  double faded(int t, int j, int a) const {
    double product = 1;
    for (int s = j + 1; s <= t; ++s) product *= std::exp(g(s, a));
    return product;
  }
  double k(int j, int a) const {
    return at(j, c.k(head, a)) * (c.input_gate ? std::exp(at(j, c.i(head))) : 1);
  }
  double q(int t, int a) const { return c.scale * at(t, c.q(head, a)); }
  double v(int j, int d) const { return d < 0 ? 1 : at(j, c.v(head, d)); }
  // Element (a, d) of the state after row t; d = -1: the normaliser's.
  double state(int t, int a, int d) const {
    double sum = faded(t, -1, a) * start[d < 0 ? c.z(head, a) : c.S(head, a, d)];
    for (int j = 0; j <= t; ++j) sum += faded(t, j, a) * k(j, a) * v(j, d);
    return sum;
  }
  double read(int t, int d) const {
    double sum = 0;
    for (int a = 0; a < c.DK; ++a) sum += q(t, a) * state(t, a, d);
    return sum;
  }
};

RecurrenceResult oracle(const GlaConfig& c, const RecurrenceOp& op, const Floats& rows,
                        const Floats& start) {
  RecurrenceResult result{{}, start};
  const int L = static_cast<int>(rows.size()) / c.width();
  for (int t = 0; t < L; ++t) {
    for (int head = 0; head < c.H; ++head) {
      const Oracle at{c, op, rows, start, head};
      double normaliser = c.normaliser ? at.read(t, -1) + c.eps : 1;
      if (c.bounded) normaliser = std::max(std::fabs(at.read(t, -1)), 1.0) + c.eps;
      for (int d = 0; d < c.DV; ++d) {
        result.y.push_back(static_cast<float>(at.read(t, d) / normaliser));
      }
    }
  }
  for (int head = 0; head < c.H; ++head) {
    const Oracle at{c, op, rows, start, head};
    for (int a = 0; a < c.DK; ++a) {
      if (c.normaliser) result.state[c.z(head, a)] = static_cast<float>(at.state(L - 1, a, -1));
      for (int d = 0; d < c.DV; ++d) {
        result.state[c.S(head, a, d)] = static_cast<float>(at.state(L - 1, a, d));
      }
    }
  }
  return result;
}

struct Case {
  std::string name;
  GlaConfig config;
};

// (H, DK, DV, chunk, decay, input gate, normaliser, mean and deviation of the log decay, and where
// it matters scale, eps and whether the normaliser is bounded)
const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      {"gla", {2, 8, 12, 8, GlaDecay::kChannel, false, false, -0.1f, 0.1f}},
      {"one_of_everything", {1, 1, 1, 5, GlaDecay::kChannel, false, false, -0.5f, 0.3f}},
      {"odd_sizes", {3, 5, 7, 16, GlaDecay::kChannel, false, false, -0.1f, 0.1f}},
      {"long_chunk", {1, 33, 16, 64, GlaDecay::kChannel, false, false, -0.05f, 0.05f}},
      // exp(-sum) overflows within two rows of a chunk.
      {"fades_at_once", {2, 8, 12, 16, GlaDecay::kChannel, false, false, -60, 30}},
      {"fades_or_stays", {2, 8, 12, 16, GlaDecay::kChannel, false, false, 0, 60}},
      {"channel_and_gate", {2, 8, 12, 8, GlaDecay::kChannel, true, true, -0.1f, 0.1f}},
      {"simple_gla", {2, 8, 12, 8, GlaDecay::kToken, false, false, -0.1f, 0.1f}},
      {"mlstm_sigmoid", {2, 8, 12, 8, GlaDecay::kToken, true, false, -0.3f, 0.3f}},
      {"mlstm_sigmoid_bounded",
       {2, 8, 12, 8, GlaDecay::kToken, true, true, -0.3f, 0.3f, 1, 1e-2f, true}},
      {"retnet", {3, 8, 12, 8, GlaDecay::kHead, false, false, -0.03f, 0.02f}},
      {"head_normalised", {3, 8, 12, 8, GlaDecay::kHead, true, true, -0.03f, 0.02f}},
      {"linear_attention", {2, 8, 12, 8, GlaDecay::kNone, false, false}},
      {"normalised", {2, 8, 12, 8, GlaDecay::kNone, false, true}},
  };
  return kCases;
}

TEST(GlaReference, StepFormIsTheParallelForm) {
  KernelDevice device("reference");
  std::mt19937_64 random(1);
  for (const Case& test : cases()) {
    GlaConfig c = test.config;
    c.chunk = 1;
    const RecurrenceOp op = gla_op(c, random);
    const Floats rows = op.inputs(21, random);
    for (const Floats& start : {Floats(op.state_size()), op.start(random)}) {
      expect_close(run_alone(device, op, rows, start), oracle(c, op, rows, start), op.tolerance,
                   test.name);
    }
  }
}

TEST(GlaReference, ChunkFormIsTheParallelForm) {
  KernelDevice device("reference");
  std::mt19937_64 random(2);
  for (const Case& test : cases()) {
    const RecurrenceOp op = gla_op(test.config, random);
    for (const int L : {2, 8, 21, 40}) {
      const Floats rows = op.inputs(L, random), start = op.start(random);
      expect_close(run_alone(device, op, rows, start), oracle(test.config, op, rows, start),
                   op.tolerance, test.name + " L " + std::to_string(L));
    }
  }
}

// By hand: H = DK = DV = 1, decay 1/2, scale 1. Row 1 (q 2, k 3, v 5): S = 15, o = 30.
// Row 2 (q 1, k 1, v 7): S = 7.5 + 7 = 14.5 = o. Row 3 (q -1, k 0, v 9): S = 7.25, o = -7.25.
TEST(GlaReference, ByHand) {
  KernelDevice device("reference");
  std::mt19937_64 random(3);
  const float g = std::log(0.5f);
  for (const int chunk : {1, 2, 3}) {
    for (const GlaDecay decay : {GlaDecay::kHead, GlaDecay::kToken, GlaDecay::kChannel}) {
      GlaConfig c{1, 1, 1, chunk, decay};
      c.scale = 1;
      RecurrenceOp op = gla_op(c, random);
      const bool head = decay == GlaDecay::kHead;
      if (head) op.weights = {{g}};
      const Floats rows = head ? Floats{2, 3, 5, 0, 1, 1, 7, 0, -1, 0, 9, 0}
                               : Floats{2, 3, 5, g, 0, 1, 1, 7, g, 0, -1, 0, 9, g, 0};
      const RecurrenceResult result = run_alone(device, op, rows, {0});
      EXPECT_EQ(result.y, (Floats{30, 14.5f, -7.25f}));
      EXPECT_EQ(result.state, (Floats{7.25f}));
    }
  }
}

}  // namespace recurve::testing::gla_reference_test
