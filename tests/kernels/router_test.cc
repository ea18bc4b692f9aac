// Which experts rows go to: every device against the formula in double, by sorting.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "tests/support/kernels/compare.h"
#include "tests/support/kernels/kernel_device.h"

namespace recurve::testing::router_test {

struct Case {
  int rows, E, top;
  RouterScores scores = RouterScores::kSoftmax;
  bool renormalised = true, corrected = false;
  float scale = 1;
  int groups = 1, top_groups = 1;
};

const Case kCases[] = {
    {1, 3, 1},
    {7, 3, 3},
    {50, 5, 2},
    {33, 17, 5, RouterScores::kSoftmax, false},
    {300, 17, 4, RouterScores::kSigmoid, true, false, 2.5f},
    {40, 8, 2, RouterScores::kSigmoid, true, true, 2.446f},
    {40, 12, 3, RouterScores::kSigmoid, false, true, 1, 4, 2},
    {40, 6, 2, RouterScores::kSoftmax, true, true, 1, 6, 3},
    {9, 512, 10},
};

struct Inputs {
  explicit Inputs(const Case& c, int more = 1) : stride(c.E + more) {
    std::mt19937_64 random(static_cast<uint64_t>(c.rows * 1000 + c.E));
    logits = normal_floats(random, static_cast<size_t>(c.rows) * stride, 2);
    correction = normal_floats(random, c.E, 0.3f);
  }
  int stride;
  std::vector<float> logits, correction;
};

struct Routed {
  std::vector<int32_t> expert, begin, pair;
  std::vector<float> weight;
};

Routed run(KernelDevice& device, const Case& c, const Inputs& in) {
  const auto logits = device.array(in.logits), correction = device.array(in.correction);
  const size_t pairs = static_cast<size_t>(c.rows) * c.top;
  const auto expert = device.array(std::vector<int32_t>(pairs, -1));
  const auto pair = device.array(std::vector<int32_t>(pairs, -1));
  const auto begin = device.array(std::vector<int32_t>(c.E + 1, -1));
  const auto weight = device.floats(pairs);
  device.kernels().router({.rows = c.rows,
                           .E = c.E,
                           .top = c.top,
                           .scores = c.scores,
                           .renormalised = c.renormalised,
                           .scale = c.scale,
                           .groups = c.groups,
                           .top_groups = c.top_groups,
                           .stride = in.stride,
                           .logits = logits.data(),
                           .correction = c.corrected ? correction.data() : nullptr,
                           .expert = expert.data(),
                           .weight = weight.data(),
                           .begin = begin.data(),
                           .pair = pair.data()},
                          *device.stream);
  EXPECT_TRUE(expert.guards_intact() && pair.guards_intact() && begin.guards_intact() &&
              weight.guards_intact());
  return {expert.read(), begin.read(), pair.read(), weight.read()};
}

// The numbers of the largest, of which equal ones are in order; then in the order of the numbers.
std::vector<int> largest(const std::vector<double>& values, int count) {
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](int e) { return values[e]; });
  order.resize(count);
  std::ranges::sort(order);
  return order;
}

void expect_row(const Case& c, const Inputs& in, const Routed& found, int r) {
  std::vector<double> s, chosen_by;
  double sum = 0, chosen_sum = 0;
  for (int e = 0; e < c.E; ++e) {
    const double logit = in.logits[static_cast<size_t>(r) * in.stride + e];
    s.push_back(c.scores == RouterScores::kSoftmax ? std::exp(logit) : 1 / (1 + std::exp(-logit)));
    sum += s.back();
  }
  for (double& score : s) score /= c.scores == RouterScores::kSoftmax ? sum : 1;
  for (int e = 0; e < c.E; ++e) chosen_by.push_back(s[e] + (c.corrected ? in.correction[e] : 0));
  if (c.groups > 1) {
    const int size = c.E / c.groups;
    std::vector<double> sums;
    for (int g = 0; g < c.groups; ++g) {
      std::vector<double> of(chosen_by.begin() + g * size, chosen_by.begin() + (g + 1) * size);
      std::ranges::sort(of, std::greater());
      sums.push_back(of[0] + (size > 1 ? of[1] : 0));
    }
    const std::vector<int> open = largest(sums, c.top_groups);
    for (int e = 0; e < c.E; ++e) {
      if (std::ranges::find(open, e / size) == open.end()) chosen_by[e] = -1e9;
    }
  }
  const std::vector<int> chosen = largest(chosen_by, c.top);
  for (const int e : chosen) chosen_sum += s[e];
  for (int j = 0; j < c.top; ++j) {
    const size_t p = static_cast<size_t>(r) * c.top + j;
    ASSERT_EQ(found.expert[p], chosen[j]) << "row " << r;
    const double weight = c.scale * s[chosen[j]] / (c.renormalised ? chosen_sum : 1);
    ASSERT_NEAR(found.weight[p], weight, 1e-6 * weight + 1e-30) << "row " << r;
  }
}

// Every pair is there once, by expert and then by row.
void expect_sorted(const Case& c, const Routed& found) {
  ASSERT_EQ(found.begin.front(), 0);
  ASSERT_EQ(found.begin.back(), c.rows * c.top);
  for (int e = 0; e < c.E; ++e) {
    for (int32_t i = found.begin[e]; i < found.begin[e + 1]; ++i) {
      ASSERT_EQ(found.expert.at(found.pair[i]), e);
      if (i > found.begin[e]) {
        ASSERT_LT(found.pair[i - 1], found.pair[i]);
      }
    }
  }
}

void expect_formula(KernelDevice& device) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::Message() << c.rows << " rows, " << c.top << " of " << c.E);
    const Inputs in(c);
    const Routed found = run(device, c, in);
    for (int r = 0; r < c.rows; ++r) expect_row(c, in, found, r);
    expect_sorted(c, found);
  }
}

// Of equal logits those of the lower numbers.
void expect_order_of_ties(KernelDevice& device) {
  const Case c{2, 7, 3};
  Inputs in(c, 0);
  in.logits = {0, 1, 1, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2};
  EXPECT_EQ(run(device, c, in).expert, (std::vector<int32_t>{1, 2, 4, 0, 1, 2}));
}

// What is read of memory follows these numbers.
void expect_range_of_what_is_no_number(KernelDevice& device) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (Case c : kCases) {
    for (const float bad : {kNaN, kInfinity, -kInfinity}) {
      Inputs in(c);
      for (size_t i = 0; i < in.logits.size(); i += 2) in.logits[i] = bad;
      std::fill_n(in.logits.begin(), in.stride, bad);
      const Routed found = run(device, c, in);
      expect_sorted(c, found);
      for (int r = 0; r < c.rows; ++r) {
        const auto row = found.expert.begin() + r * c.top;
        ASSERT_EQ(std::set(row, row + c.top).size(), static_cast<size_t>(c.top));
        ASSERT_TRUE(std::all_of(row, row + c.top, [&](int32_t e) { return e >= 0 && e < c.E; }));
      }
    }
  }
}

void expect_all(KernelDevice& device) {
  expect_formula(device);
  expect_order_of_ties(device);
  expect_range_of_what_is_no_number(device);
}

TEST(RouterReference, IsTheFormula) {
  KernelDevice device("reference");
  expect_all(device);
}

class RouterTest : public DeviceTest {};

TEST_P(RouterTest, IsTheFormula) {
  KernelDevice device = make_device();
  expect_all(device);
}

TEST_P(RouterTest, NeighboursDoNotChangeARow) {
  KernelDevice device = make_device();
  for (const Case& c : kCases) {
    const Inputs in(c);
    const Routed together = run(device, c, in);
    Case one = c;
    one.rows = 1;
    for (int r = 0; r < c.rows; r += 5) {
      Inputs part = in;
      part.logits.assign(in.logits.begin() + r * in.stride,
                         in.logits.begin() + (r + 1) * in.stride);
      const Routed alone = run(device, one, part);
      const auto at = together.weight.begin() + r * c.top;
      ASSERT_TRUE(bit_equal(alone.weight, {at, at + c.top}));
    }
  }
}

RECURVE_ON_EACH_DEVICE(RouterTest);
RECURVE_ON_CUDA(RouterTest);

}  // namespace recurve::testing::router_test
