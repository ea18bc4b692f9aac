// Decaying outer products: the reference against the parallel (quadratic) form in double, every
// device against the reference, and what must not change a bit.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/compare.h"
#include "tests/support/gla_case.h"

namespace recurve::testing {
namespace {

// The parallel form of Yang et al. 2023, eq. 12, in double and extended by a state to start from:
// the weight of row j at row t is the product of the decays between them.
struct Oracle {
  const GlaConfig& c;
  const GlaRows& rows;
  const GlaState& start;
  int head;

  double g(int t, int a) const {
    const int at = c.decay == GlaDecay::kChannel ? head * c.DK + a : head;
    return rows.g[t * c.g_width() + at];
  }
  // Product of the decays of channel a after row j up to row t; j = -1 is the state at the start.
  double faded(int t, int j, int a) const {
    double product = 1;
    for (int s = j + 1; s <= t; ++s) product *= std::exp(g(s, a));
    return product;
  }
  double k(int j, int a) const {
    return rows.k[(j * c.H + head) * c.DK + a] * std::exp(double{rows.i[j * c.H + head]});
  }
  double q(int t, int a) const { return double{c.scale} * rows.q[(t * c.H + head) * c.DK + a]; }
  double v(int j, int d) const { return d < 0 ? 1 : rows.v[(j * c.H + head) * c.DV + d]; }
  // Element (a, d) of the state after row t; d = -1: the normaliser's.
  double state(int t, int a, int d) const {
    const double before = d < 0 ? start.z[head * c.DK + a]
                                : start.S[(head * c.DK + a) * static_cast<size_t>(c.DV) + d];
    double sum = faded(t, -1, a) * before;
    for (int j = 0; j <= t; ++j) sum += faded(t, j, a) * k(j, a) * v(j, d);
    return sum;
  }
  double read(int t, int d) const {
    double sum = 0;
    for (int a = 0; a < c.DK; ++a) sum += q(t, a) * state(t, a, d);
    return sum;
  }
};

GlaResult oracle(const GlaConfig& c, const GlaRows& rows, const GlaState& start) {
  GlaResult result{{}, start};
  for (int t = 0; t < rows.L; ++t) {
    for (int head = 0; head < c.H; ++head) {
      const Oracle at{c, rows, start, head};
      double normaliser = c.normaliser ? at.read(t, -1) + c.eps : 1;
      if (c.bounded) normaliser = std::max(std::fabs(at.read(t, -1)), 1.0) + c.eps;
      for (int d = 0; d < c.DV; ++d) {
        result.o.push_back(static_cast<float>(at.read(t, d) / normaliser));
      }
    }
  }
  for (int head = 0; head < c.H; ++head) {
    const Oracle at{c, rows, start, head};
    for (int a = 0; a < c.DK; ++a) {
      const size_t z_at = static_cast<size_t>(head) * c.DK + a;
      if (c.normaliser) result.state.z[z_at] = static_cast<float>(at.state(rows.L - 1, a, -1));
      for (int d = 0; d < c.DV; ++d) {
        result.state.S[z_at * c.DV + d] = static_cast<float>(at.state(rows.L - 1, a, d));
      }
    }
  }
  return result;
}

// Sums of up to 40 rows times 33 channels of products of a few units each: a random walk of 2^-24 a
// step. Exponents are small sums, off by 2^-24 of their size. Values that cancel need the absolute
// part.
constexpr Tolerance kTolerance = {.absolute = 5e-5, .relative = 5e-5};

void expect_close(const GlaResult& found, const GlaResult& wanted, const std::string& what) {
  EXPECT_TRUE(close(found.o, wanted.o, kTolerance)) << what << ": o";
  EXPECT_TRUE(close(found.state.S, wanted.state.S, kTolerance)) << what << ": S";
  EXPECT_TRUE(close(found.state.z, wanted.state.z, kTolerance)) << what << ": z";
}

void expect_same_bits(const GlaResult& found, const GlaResult& wanted, const std::string& what) {
  EXPECT_TRUE(bit_equal(found.o, wanted.o)) << what << ": o";
  EXPECT_TRUE(bit_equal(found.state.S, wanted.state.S)) << what << ": S";
  EXPECT_TRUE(bit_equal(found.state.z, wanted.state.z)) << what << ": z";
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
    const GlaRows rows = random_rows(c, 21, random);
    for (const GlaState& start : {zero_state(c), random_state(c, random)}) {
      expect_close(run_alone(device, c, rows, start), oracle(c, rows, start), test.name);
    }
  }
}

TEST(GlaReference, ChunkFormIsTheParallelForm) {
  KernelDevice device("reference");
  std::mt19937_64 random(2);
  for (const Case& test : cases()) {
    for (const int L : {2, 8, 21, 40}) {
      const GlaRows rows = random_rows(test.config, L, random);
      const GlaState start = random_state(test.config, random);
      expect_close(run_alone(device, test.config, rows, start), oracle(test.config, rows, start),
                   test.name + " L " + std::to_string(L));
    }
  }
}

// By hand: H = DK = DV = 1, decay 1/2, scale 1. Row 1 (q 2, k 3, v 5): S = 15, o = 30.
// Row 2 (q 1, k 1, v 7): S = 7.5 + 7 = 14.5 = o. Row 3 (q -1, k 0, v 9): S = 7.25, o = -7.25.
TEST(GlaReference, ByHand) {
  KernelDevice device("reference");
  for (const int chunk : {1, 2, 3}) {
    for (const GlaDecay decay : {GlaDecay::kHead, GlaDecay::kToken, GlaDecay::kChannel}) {
      GlaConfig c{1, 1, 1, chunk, decay};
      c.scale = 1;
      const float g = std::log(0.5f);
      const GlaRows rows{3, {2, 1, -1}, {3, 1, 0}, {5, 7, 9}, {g, g, g}, {0, 0, 0}};
      const GlaResult result = run_alone(device, c, rows, zero_state(c));
      EXPECT_EQ(result.o, (std::vector<float>{30, 14.5f, -7.25f}));
      EXPECT_EQ(result.state.S, (std::vector<float>{7.25f}));
    }
  }
}

void expect_split_is_the_same(KernelDevice& device, const GlaConfig& config) {
  std::mt19937_64 random(4);
  GlaConfig c = config;
  c.chunk = 8;
  const GlaRows rows = random_rows(c, 45, random);
  const GlaState start = random_state(c, random);
  const GlaResult whole = run_alone(device, c, rows, start);
  for (const std::vector<int>& sizes : std::vector<std::vector<int>>{
           {8, 8, 8, 8, 8, 5}, {16, 29}, {40, 5}, {8, 24, 13}, {32, 8, 5}}) {
    expect_same_bits(run_split(device, c, rows, start, sizes), whole,
                     std::to_string(sizes.size()) + " parts");
  }
}

// Decodes and prompts in one call, in any order and in any slots, are what each is alone.
void expect_neighbours_change_nothing(KernelDevice& device, const GlaConfig& c) {
  std::mt19937_64 random(6);
  const std::vector<int> lengths = {1, 37, 1, 16, 2, 1, 64};
  std::vector<GlaSequence> batch;
  std::vector<GlaResult> alone;
  for (const int L : lengths) {
    batch.push_back({random_rows(c, L, random), random_state(c, random), 0});
    if (c.decay == GlaDecay::kHead) {  // one decay for the batch
      const std::vector<float>& first = batch[0].rows.g;
      for (size_t i = 0; i < batch.back().rows.g.size(); ++i) {
        batch.back().rows.g[i] = first[i % c.H];
      }
    }
    alone.push_back(run_alone(device, c, batch.back().rows, batch.back().state));
  }
  std::vector<int> order = {0, 1, 2, 3, 4, 5, 6}, slots = {9, 1, 4, 7, 2, 0, 5};
  for (int round = 0; round < 3; ++round) {
    std::vector<GlaSequence> shuffled;
    for (size_t b = 0; b < order.size(); ++b) {
      shuffled.push_back(batch[order[b]]);
      shuffled.back().slot = slots[b];
    }
    const std::vector<GlaResult> found = run_gla(device, c, shuffled);
    for (size_t b = 0; b < order.size(); ++b) {
      expect_same_bits(found[b], alone[order[b]], "sequence " + std::to_string(order[b]));
    }
    std::shuffle(order.begin(), order.end(), random);
    std::shuffle(slots.begin(), slots.end(), random);
  }
}

TEST(GlaReference, SplitsNeighboursAndSlots) {
  KernelDevice device("reference");
  for (const Case& test : cases()) {
    SCOPED_TRACE(test.name);
    expect_split_is_the_same(device, test.config);
    expect_neighbours_change_nothing(device, test.config);
  }
}

class GlaTest : public DeviceTest {};

TEST_P(GlaTest, MatchesTheReference) {
  KernelDevice reference("reference"), device = make_device();
  std::mt19937_64 random(7);
  for (const Case& test : cases()) {
    for (const auto& [DK, DV] : {std::pair{1, 1}, {5, 7}, {16, 32}, {33, 70}}) {
      for (const int chunk : {1, 4, 16, 64}) {
        GlaConfig c = test.config;
        c.DK = DK;
        c.DV = DV;
        c.chunk = chunk;
        for (const int L : {1, 5, 70}) {
          const GlaRows rows = random_rows(c, L, random);
          const GlaState start = random_state(c, random);
          expect_close(run_alone(device, c, rows, start), run_alone(reference, c, rows, start),
                       test.name + " chunk " + std::to_string(chunk) + " L " + std::to_string(L));
        }
      }
    }
  }
}

TEST_P(GlaTest, SplitsNeighboursAndSlots) {
  KernelDevice device = make_device();
  for (const Case& test : cases()) {
    SCOPED_TRACE(test.name);
    expect_split_is_the_same(device, test.config);
    expect_neighbours_change_nothing(device, test.config);
  }
}

RECURVE_ON_EACH_DEVICE(GlaTest);

}  // namespace
}  // namespace recurve::testing
