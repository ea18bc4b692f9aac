// Recurrent cells: the reference against the textbooks' equations in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "tests/support/kernels/rnn_op.h"

namespace recurve::testing::rnn_reference_test {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

// ---- the equations, in double, over whole vectors

double sig(double x) { return 1 / (1 + std::exp(-x)); }

RecurrenceResult oracle(const RnnConfig& c, const RecurrenceOp& op, const Floats& x,
                        const Floats& start) {
  const int D = c.D(), G = c.gates(), L = static_cast<int>(x.size()) / (G * D);
  const Floats &R = op.matrix, &b = op.weights[0];
  std::array<Doubles, 4> state;
  for (int a = 0; a < c.states(); ++a) {
    state[a] = Doubles(start.begin() + a * D, start.begin() + (a + 1) * D);
  }
  auto& [h, cell, n, m] = state;
  RecurrenceResult result;
  for (int t = 0; t < L; ++t) {
    // The block-diagonal matrix of gate j, all heads, times h; and the input.
    const auto recurrent = [&, before = h](int j, int d) {
      double sum = c.bias ? b[j * D + d] : 0.0;
      for (int from = 0; from < D; ++from) {
        if (from / c.DH != d / c.DH) continue;
        const int row = (d / c.DH * G + j) * c.DH + d % c.DH;
        sum += double{R[row * c.DH + from % c.DH]} * before[from];
      }
      return sum;
    };
    const auto input = [&](int j, int d) { return double{x[(t * G + j) * D + d]}; };
    const auto both = [&](int j, int d) { return input(j, d) + recurrent(j, d); };
    for (int d = 0; d < D; ++d) {
      if (c.cell == RnnCell::kElman) {
        h[d] = std::tanh(both(0, d));
      } else if (c.cell == RnnCell::kLstm) {
        cell[d] = sig(both(1, d)) * cell[d] + sig(both(0, d)) * std::tanh(both(2, d));
        h[d] = sig(both(3, d)) * std::tanh(cell[d]);
      } else if (c.cell == RnnCell::kSlstm) {
        // Without a stabiliser: i and f as exponentials of what they are.
        const double i = both(0, d), lf = -std::log1p(std::exp(-both(1, d))) + m[d];
        const double top = n[d] == 0 ? i : std::max(i, lf);
        const double I = std::exp(i - top), F = n[d] == 0 ? 0 : std::exp(lf - top);
        cell[d] = F * cell[d] + I * std::tanh(both(2, d));
        n[d] = std::max<double>(F * n[d] + I, c.n_min);
        m[d] = top;
        h[d] = sig(both(3, d)) * cell[d] / n[d];
      } else {
        const double r = sig(both(0, d)), z = sig(both(1, d));
        const double g = recurrent(2, d);
        const double candidate =
            std::tanh(input(2, d) + r * (c.cell == RnnCell::kGru ? g : std::tanh(g)));
        h[d] = (1 - z) * candidate + z * h[d];
      }
    }
    for (int d = 0; d < D; ++d) result.y.push_back(static_cast<float>(h[d]));
  }
  for (const Doubles& array : state) {
    for (const double value : array) result.state.push_back(static_cast<float>(value));
  }
  return result;
}

std::vector<RnnConfig> configs() {
  std::vector<RnnConfig> all;
  for (const auto& [cell, n_min] : {std::pair{RnnCell::kElman, 0.0f},
                                    {RnnCell::kLstm, 0.0f},
                                    {RnnCell::kGru, 0.0f},
                                    {RnnCell::kFlashGru, 0.0f},
                                    {RnnCell::kSlstm, 0.0f},
                                    {RnnCell::kSlstm, 1.0f}}) {
    for (const auto& [H, DH] : {std::pair{1, 1}, {1, 16}, {3, 5}, {4, 33}, {2, 70}}) {
      all.push_back({cell, H, DH, true, n_min});
    }
    all.push_back({cell, 2, 8, false, n_min});
    all.push_back({cell, 2, 24, true, n_min, DType::kBF16});
  }
  return all;
}

TEST(RnnReference, IsTheEquations) {
  KernelDevice device("reference");
  std::mt19937_64 random(1);
  for (const RnnConfig& c : configs()) {
    const RecurrenceOp op = rnn_op(c, random);
    for (const int L : {1, 2, 20}) {
      const Floats x = op.inputs(L, random);
      for (const Floats& start : {op.start(random), Floats(op.state_size())}) {
        expect_close(run_alone(device, op, x, start), oracle(c, op, x, start), op.tolerance,
                     op.name);
      }
    }
  }
}

// The first row of an sLSTM takes its input whole, however small its gate; and each value decides
// for itself whether it is the first.
TEST(RnnReference, SlstmStartsAtItsFirstInput) {
  KernelDevice device("reference");
  const RecurrenceOp op = rnn_op({RnnCell::kSlstm, 2, 1, false}, Floats(8, 0), {});
  // Gates i, f, z, o of the two channels; i so small that exp(i) is zero. The second channel has a
  // past: c = 3, n = 2, m = 0.
  const RecurrenceResult result =
      run_alone(device, op, {-200, -200, 0, 0, 1, 1, 0, 0}, {0, 0, 0, 3, 0, 2, 0, 0});
  EXPECT_FLOAT_EQ(result.y[0], 0.5f * std::tanh(1.0f));
  EXPECT_FLOAT_EQ(result.y[1], 0.5f * 3 / 2);
  EXPECT_FLOAT_EQ(result.state[6], -200);
  EXPECT_FLOAT_EQ(result.state[7], -std::log(2.0f));
}

TEST(RnnReference, SaturatedGatesStayFinite) {
  KernelDevice device("reference");
  std::mt19937_64 random(3);
  for (const RnnConfig& c : configs()) {
    const RecurrenceOp op = rnn_op(c, random);
    Floats x = op.inputs(10, random);
    for (float& value : x) value *= 200;
    for (const float y : run_alone(device, op, x, op.start(random)).y) {
      ASSERT_TRUE(std::isfinite(y) && std::fabs(y) <= 30) << op.name;
    }
  }
}

}  // namespace recurve::testing::rnn_reference_test
