// The reference recurrences of Mamba against their sums written out in double: no running state,
// every output directly from all inputs before it and the state at the start.
#include <gtest/gtest.h>

#include "tests/support/kernels/ssm_ops.h"

namespace recurve::testing::ssm_reference_test {

// A weight is a product of up to 40 rounded factors, and an output a sum of as many terms that may
// cancel: 40 x 2^-23 relatively of the terms, which are of a few units.
constexpr Tolerance kTolerance = {.absolute = 3e-5, .relative = 3e-5};

double silu(double x) { return x / (1 + std::exp(-x)); }
double softplus(double x) { return std::log1p(std::exp(x)); }

// Row t of a sequence, from column `column` on.
struct Rows {
  const std::vector<float>& x;
  int width;
  double operator()(int t, int column) const { return x[static_cast<size_t>(t) * width + column]; }
};

RecurrenceResult conv_oracle(const ConvSize& c, const RecurrenceOp& op, const std::vector<float>& x,
                             const std::vector<float>& start) {
  const int past = c.width - 1, L = static_cast<int>(x.size()) / c.D;
  // Input of row t, which may be before the first.
  const auto input = [&](int t, int d) -> double {
    return t < 0 ? start[d * past + past + t] : x[static_cast<size_t>(t) * c.D + d];
  };
  RecurrenceResult result;
  for (int t = 0; t < L; ++t) {
    for (int d = 0; d < c.D; ++d) {
      double sum = c.bias ? op.weights[1][d] : 0;
      for (int back = 0; back < c.width; ++back) {
        sum += op.weights[0][d * c.width + c.width - 1 - back] * input(t - back, d);
      }
      result.y.push_back(static_cast<float>(c.silu ? silu(sum) : sum));
    }
  }
  for (int d = 0; d < c.D; ++d) {
    for (int j = 0; j < past; ++j) {
      result.state.push_back(static_cast<float>(input(L - past + j, d)));
    }
  }
  return result;
}

RecurrenceResult scan_oracle(const ScanSize& c, const RecurrenceOp& op, const std::vector<float>& x,
                             const std::vector<float>& start) {
  const Rows row{x, op.width()};
  const int L = static_cast<int>(x.size()) / op.width();
  // Value i of the `count` from the column `first` on, normed where the op norms them.
  const auto param = [&](int t, int first, int count, int i) {
    double squares = 0;
    for (int j = 0; j < count; ++j) squares += square(row(t, first + j));
    return row(t, first + i) /
           (c.norm_eps > 0 ? std::sqrt(squares / count + double{c.norm_eps}) : 1);
  };
  const auto dt = [&](int t, int d) {
    double sum = op.weights[0][d];
    for (int r = 0; r < c.R; ++r) sum += op.weights[3][d * c.R + r] * param(t, c.low(), c.R, r);
    return softplus(sum);
  };
  // The state after row t; j = -1 stands for the state at the start.
  const auto state = [&](int t, int d, int n) {
    const double A = op.weights[1][d * c.N + n];
    double sum = 0;
    for (int j = -1; j <= t; ++j) {
      double exponent = 0;
      for (int s = j + 1; s <= t; ++s) exponent += dt(s, d) * A;
      const double put_in =
          j < 0 ? start[d * c.N + n] : dt(j, d) * param(j, c.B(), c.N, n) * row(j, d);
      sum += std::exp(exponent) * put_in;
    }
    return sum;
  };
  RecurrenceResult result;
  for (int t = 0; t < L; ++t) {
    for (int d = 0; d < c.D; ++d) {
      double y = op.weights[2][d] * row(t, d);
      for (int n = 0; n < c.N; ++n) y += param(t, c.C(), c.N, n) * state(t, d, n);
      if (c.gate) y *= silu(row(t, c.z() + d));
      result.y.push_back(static_cast<float>(y));
    }
  }
  for (int d = 0; d < c.D; ++d) {
    for (int n = 0; n < c.N; ++n) result.state.push_back(static_cast<float>(state(L - 1, d, n)));
  }
  return result;
}

RecurrenceResult ssd_oracle(const SsdSize& c, const RecurrenceOp& op, const std::vector<float>& x,
                            const std::vector<float>& start) {
  const Rows row{x, op.width()};
  const int L = static_cast<int>(x.size()) / op.width(), B = c.H * c.P, C = B + c.G * c.N;
  const auto dt = [&](int t, int h) {
    const double value = softplus(row(t, C + c.G * c.N + h) + op.weights[0][h]);
    return std::min<double>(std::max<double>(value, c.dt_min), c.dt_max);
  };
  // How much of what row j put in is there after row t.
  const auto kept = [&](int t, int j, int h) {
    double exponent = 0;
    for (int s = j + 1; s <= t; ++s) exponent += dt(s, h) * op.weights[1][h];
    return std::exp(exponent);
  };
  const auto state = [&](int t, int h, int p, int n) {
    const int group = h * c.G / c.H;
    double sum = kept(t, -1, h) * start[(h * c.P + p) * c.N + n];
    for (int j = 0; j <= t; ++j) {
      sum += kept(t, j, h) * dt(j, h) * row(j, h * c.P + p) * row(j, B + group * c.N + n);
    }
    return sum;
  };
  RecurrenceResult result;
  for (int t = 0; t < L; ++t) {
    for (int h = 0; h < c.H; ++h) {
      for (int p = 0; p < c.P; ++p) {
        double y = op.weights[2][h] * row(t, h * c.P + p);
        for (int n = 0; n < c.N; ++n) {
          y += row(t, C + h * c.G / c.H * c.N + n) * state(t, h, p, n);
        }
        if (c.gate) y *= silu(row(t, C + c.G * c.N + c.H + h * c.P + p));
        result.y.push_back(static_cast<float>(y));
      }
    }
  }
  for (int h = 0; h < c.H; ++h) {
    for (int p = 0; p < c.P; ++p) {
      for (int n = 0; n < c.N; ++n) {
        result.state.push_back(static_cast<float>(state(L - 1, h, p, n)));
      }
    }
  }
  return result;
}

RecurrenceResult linear_oracle(const LinearRecurrenceSize& c, const std::vector<float>& x,
                               const std::vector<float>& start) {
  const Rows row{x, 2 * c.D};
  const int L = static_cast<int>(x.size()) / (2 * c.D);
  RecurrenceResult result;
  for (int t = 0; t < L; ++t) {
    for (int d = 0; d < c.D; ++d) {
      double sum = 0;
      for (int j = -1; j <= t; ++j) {
        double product = j < 0 ? start[d] : row(j, c.D + d);
        for (int s = j + 1; s <= t; ++s) product *= row(s, d);
        sum += product;
      }
      result.y.push_back(static_cast<float>(sum));
    }
  }
  result.state.assign(result.y.end() - c.D, result.y.end());
  return result;
}

// Calls check(inputs, start, what) for several lengths, from zero and from some state.
template <typename Check>
void for_each_start(const RecurrenceOp& op, std::mt19937_64& random, const std::vector<int>& sizes,
                    const Check& check) {
  for (const int L : sizes) {
    const std::vector<float> x = op.inputs(L, random);
    for (const bool zero : {true, false}) {
      const std::vector<float> start =
          zero ? std::vector<float>(op.state_size()) : op.start(random);
      check(x, start, op.name + " L " + std::to_string(L) + (zero ? " from zero" : ""));
    }
  }
}

TEST(SsmReference, CausalConv1d) {
  KernelDevice device("reference");
  std::mt19937_64 random(1);
  for (const ConvSize& c :
       {ConvSize{5, 4}, {1, 2}, {7, 3}, {6, 4, false}, {6, 4, true, false}, {3, 9, false, false}}) {
    const RecurrenceOp op = conv_op(c, random);
    for_each_start(op, random, {1, 2, 3, 4, 20}, [&](auto& x, auto& start, const auto& what) {
      expect_close(run_alone(device, op, x, start), conv_oracle(c, op, x, start), kTolerance, what);
    });
  }
}

TEST(SsmReference, SelectiveScan) {
  KernelDevice device("reference");
  std::mt19937_64 random(2);
  for (const ScanSize& c : {ScanSize{5, 16},
                            {1, 1},
                            {3, 7},
                            {4, 4, 4, false},
                            {3, 4, 4, true, 25, 3},
                            {3, 4, 4, true, -25, 3},
                            {3, 4, 4, true, -2, 2, 7, DType::kBF16},
                            {3, 5, 4, true, -2, 2, 7, DType::kF32, 1e-3f}}) {
    const RecurrenceOp op = scan_op(c, random);
    for_each_start(op, random, {1, 2, 21}, [&](auto& x, auto& start, const auto& what) {
      expect_close(run_alone(device, op, x, start), scan_oracle(c, op, x, start), kTolerance, what);
    });
  }
}

TEST(SsmReference, Ssd) {
  KernelDevice device("reference");
  std::mt19937_64 random(3);
  constexpr float kNoLimit = std::numeric_limits<float>::infinity();
  for (SsdSize c : {SsdSize{4, 5, 16},
                    {1, 1, 1},
                    {6, 3, 7, 3},
                    {4, 4, 4, 4},
                    {4, 4, 8, 2, 4, 0.1f, 0.3f},
                    {2, 4, 4, 1, 4, 0, kNoLimit, 25, 3},
                    {2, 4, 4, 1, 4, 0, kNoLimit, -25, 3},
                    {2, 5, 4, 1, 4, 0, kNoLimit, -2, 2, true}}) {
    for (const int chunk : {1, 4, 16, 64}) {
      c.chunk = chunk;
      const RecurrenceOp op = ssd_op(c, random);
      for_each_start(op, random, {1, 2, 21}, [&](auto& x, auto& start, const auto& what) {
        expect_close(run_alone(device, op, x, start), ssd_oracle(c, op, x, start), kTolerance,
                     what);
      });
    }
  }
}

TEST(SsmReference, SsdWrittenOnceInSeveralRows) {
  KernelDevice device("reference");
  std::mt19937_64 random(13);
  for (const int every : {2, 3, 8}) {
    for (SsdSize c : {SsdSize{4, 5, 16}, {6, 3, 7, 3}, {4, 4, 4, 4}}) {
      for (const int chunk : {1, 4, 16}) {
        c.chunk = chunk;
        c.every = every;
        c.gate = every == 3;
        const RecurrenceOp op = ssd_op(c, random);
        const auto h_of = [&](const std::vector<float>& state) {
          std::vector<float> taken = op.taken_in(state);
          taken.resize(static_cast<size_t>(op.state[0]));
          return taken;
        };
        for_each_start(op, random, {1, 2, 21}, [&](auto& x, auto& start, const auto& what) {
          const RecurrenceResult found = run_alone(device, op, x, start);
          expect_close({found.y, h_of(found.state)}, ssd_oracle(c, op, x, h_of(start)), kTolerance,
                       what);
        });
        // One row after the other, over several writings of the base.
        const std::vector<float> x = op.inputs(3 * every + 1, random), start = op.start(random);
        const std::vector<int> ones(static_cast<size_t>(3 * every + 1), 1);
        const RecurrenceResult found = run_split(device, op, x, start, ones);
        expect_close({found.y, h_of(found.state)}, ssd_oracle(c, op, x, h_of(start)), kTolerance,
                     op.name);
      }
    }
  }
}

TEST(SsmReference, LinearRecurrence) {
  KernelDevice device("reference");
  std::mt19937_64 random(4);
  for (const LinearRecurrenceSize& c : {LinearRecurrenceSize{5}, {1}, {32}}) {
    const RecurrenceOp op = linear_recurrence_op(c);
    for_each_start(op, random, {1, 2, 40}, [&](auto& x, auto& start, const auto& what) {
      expect_close(run_alone(device, op, x, start), linear_oracle(c, x, start), kTolerance, what);
    });
  }
}

// y = x may be in place.
TEST(SsmReference, LinearRecurrenceInPlace) {
  KernelDevice device("reference");
  const auto c = device.array(std::vector<float>{2, 3, 4}),
             x = device.array(std::vector<float>{1, 1, 1});
  const auto state = device.array(std::vector<float>{10, -1});
  const auto begin = device.array(std::vector<int32_t>{0, 3}),
             slot = device.array(std::vector<int32_t>{1});
  device.kernels().linear_recurrence({.seqs = {1, 3, 3, begin.data(), slot.data()},
                                      .D = 1,
                                      .chunk = 2,
                                      .c_stride = 1,
                                      .x_stride = 1,
                                      .c = c.data(),
                                      .x = x.data(),
                                      .state = state.data(),
                                      .y = x.data()},
                                     *device.stream);
  EXPECT_EQ(x.read(), (std::vector<float>{-1, -2, -7}));
  EXPECT_EQ(state.read(), (std::vector<float>{10, -7}));
}

// By hand: one head, P = N = 1, dt~ = 30 so that dt = 30 without softplus, A = -1e9 (forgets all):
// h = 30 x B, y = C h + 2 x.
TEST(SsmReference, SsdByHand) {
  KernelDevice device("reference");
  std::mt19937_64 random(5);
  for (const int chunk : {1, 2}) {
    RecurrenceOp op = ssd_op({1, 1, 1, 1, chunk}, random);
    op.weights = {{0}, {-1e9f}, {2}};
    const RecurrenceResult result = run_alone(device, op, {1, 2, 3, 30, 0, 5, 7, 11, 30, 0}, {17});
    EXPECT_EQ(result.y, (std::vector<float>{182, 11560}));
    EXPECT_EQ(result.state, (std::vector<float>{1050}));
  }
}

// By hand: dt = softplus(0) = ln 2, A = -1: a decay of 1/2 a row; x = B = C = 1, no skip.
// h: 4 -> 2 + ln 2 -> 1 + 1.5 ln 2.
TEST(SsmReference, SelectiveScanByHand) {
  KernelDevice device("reference");
  std::mt19937_64 random(6);
  RecurrenceOp op = scan_op({.D = 1, .N = 1, .gate = false, .R = 1}, random);
  op.weights = {{0}, {-1}, {0}, {}};
  // low = 0: the projection adds nothing.
  const RecurrenceResult result = run_alone(device, op, {1, 0, 1, 1, 0, 1, 0, 1, 1, 0}, {4});
  EXPECT_FLOAT_EQ(result.y[0], 2.6931472f);
  EXPECT_FLOAT_EQ(result.y[1], 2.0397208f);
  EXPECT_FLOAT_EQ(result.state[0], 2.0397208f);
}

}  // namespace recurve::testing::ssm_reference_test
