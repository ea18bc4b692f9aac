// The cell of every device against the reference, and what must not change a bit.
#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/mlstm_case.h"

namespace recurve::testing {
namespace {

// The exponents are sums of up to 70 values of a few units in fp32, in another order: off by up to
// 70 x 5 x 2^-24 = 2e-5, and the weights by as much, relatively. h is a quotient that may cancel.
constexpr Tolerance kTolerance = {.absolute = 1e-4, .relative = 1e-4};

void expect_close(const MlstmResult& found, const MlstmResult& wanted, const std::string& what) {
  EXPECT_TRUE(close(found.h, wanted.h, kTolerance)) << what << ": h";
  EXPECT_TRUE(close(found.state.C, wanted.state.C, kTolerance)) << what << ": C";
  EXPECT_TRUE(close(found.state.n, wanted.state.n, kTolerance)) << what << ": n";
  EXPECT_TRUE(close(found.state.m, wanted.state.m, kTolerance)) << what << ": m";
}

void expect_same_bits(const MlstmResult& found, const MlstmResult& wanted,
                      const std::string& what) {
  EXPECT_TRUE(bit_equal(found.h, wanted.h)) << what << ": h";
  EXPECT_TRUE(bit_equal(found.state.C, wanted.state.C)) << what << ": C";
  EXPECT_TRUE(bit_equal(found.state.n, wanted.state.n)) << what << ": n";
  EXPECT_TRUE(bit_equal(found.state.m, wanted.state.m)) << what << ": m";
}

std::string describe(const MlstmConfig& c, int L) {
  return "H " + std::to_string(c.H) + " DK " + std::to_string(c.DK) + " DV " +
         std::to_string(c.DV) + " chunk " + std::to_string(c.chunk) + " L " + std::to_string(L);
}

MlstmConfig config(int H, int DK, int DV, int chunk) {
  MlstmConfig c;
  c.H = H;
  c.DK = DK;
  c.DV = DV;
  c.chunk = chunk;
  return c;
}

// h of one head at one time from the equations of the step, in double. `state`: C (DK, DV), n (DK),
// m; advanced. x: which head at which time.
struct ExactState {
  std::vector<double> C, n;
  double m = 0;
};
std::vector<double> exact_step(const MlstmConfig& c, const MlstmRows& rows, size_t x,
                               ExactState& s) {
  const auto gate = [&](double value) {
    return c.gate_soft_cap > 0 ? c.gate_soft_cap * std::tanh(value / c.gate_soft_cap) : value;
  };
  const double i = gate(rows.i[x]), lf = -std::log1p(std::exp(-gate(rows.f[x])));
  const double m = std::max(lf + s.m, i), F = std::exp(lf + s.m - m), I = std::exp(i - m);
  s.m = m;
  const size_t DK = static_cast<size_t>(c.DK), DV = static_cast<size_t>(c.DV);
  std::vector<double> h(DV);
  double qn = 0;
  for (size_t a = 0; a < DK; ++a) {
    const double q = rows.q[x * DK + a] / std::sqrt(c.DK), k = I * rows.k[x * DK + a];
    s.n[a] = F * s.n[a] + k;
    qn += q * s.n[a];
    for (size_t d = 0; d < DV; ++d) {
      s.C[a * DV + d] = F * s.C[a * DV + d] + k * rows.v[x * DV + d];
      h[d] += q * s.C[a * DV + d];
    }
  }
  for (double& value : h) value /= std::max(std::fabs(qn), std::exp(-m)) + c.eps;
  return h;
}

// All of h without rounding: (L, H, DV).
std::vector<double> exact_h(const MlstmConfig& c, const MlstmRows& rows, const MlstmState& start) {
  const size_t H = static_cast<size_t>(c.H), DK = static_cast<size_t>(c.DK);
  const size_t DV = static_cast<size_t>(c.DV);
  std::vector<double> h(static_cast<size_t>(rows.L) * H * DV);
  for (size_t head = 0; head < H; ++head) {
    const auto C = start.C.begin() + static_cast<ptrdiff_t>(head * DK * DV);
    const auto n = start.n.begin() + static_cast<ptrdiff_t>(head * DK);
    ExactState state{{C, C + static_cast<ptrdiff_t>(DK * DV)},
                     {n, n + static_cast<ptrdiff_t>(DK)},
                     start.m[head]};
    for (size_t x = head; x < static_cast<size_t>(rows.L) * H; x += H) {
      const std::vector<double> values = exact_step(c, rows, x, state);
      std::copy(values.begin(), values.end(), h.begin() + static_cast<ptrdiff_t>(x * DV));
    }
  }
  return h;
}

// Where q . n nearly cancels, the reference is itself off by more than the tolerance: what it errs
// by, others may err by too.
void expect_close_to_exact(const MlstmResult& found, const MlstmResult& reference,
                           const std::vector<double>& h, const std::string& what) {
  for (size_t x = 0; x < h.size(); ++x) {
    const double allowed = kTolerance.absolute + kTolerance.relative * std::fabs(h[x]) +
                           std::fabs(reference.h[x] - h[x]);
    ASSERT_LE(std::fabs(found.h[x] - h[x]), allowed) << what << ": h " << x << " is " << h[x];
  }
  MlstmResult same_h = reference;
  same_h.h = found.h;
  expect_close(found, same_h, what);
}

class MlstmTest : public DeviceTest {};

TEST_P(MlstmTest, MatchesTheReference) {
  KernelDevice reference("reference"), device = make_device();
  std::mt19937_64 random(1);
  for (const auto& [H, DK, DV] :
       {std::tuple{1, 1, 1}, {3, 5, 7}, {2, 8, 24}, {2, 16, 32}, {4, 33, 70}, {1, 32, 150}}) {
    for (const int chunk : {1, 4, 16, 64}) {
      const MlstmConfig c = config(H, DK, DV, chunk);
      for (const int L : {1, 2, 5, 16, 70}) {
        const MlstmRows rows = random_rows(c, L, random);
        const MlstmState start = random_state(c, random);
        expect_close_to_exact(run_alone(device, c, rows, start),
                              run_alone(reference, c, rows, start), exact_h(c, rows, start),
                              describe(c, L));
      }
    }
  }
}

TEST_P(MlstmTest, MatchesTheReferenceWithSaturatedGates) {
  KernelDevice reference("reference"), device = make_device();
  std::mt19937_64 random(2);
  for (const float i_mean : {-60.0f, 60.0f}) {
    for (const float f_mean : {-60.0f, 60.0f}) {
      MlstmConfig c = config(2, 16, 16, 16);
      c.i_mean = i_mean;
      c.f_mean = f_mean;
      const MlstmRows rows = random_rows(c, 35, random);
      const MlstmState start = random_state(c, random);
      expect_close(run_alone(device, c, rows, start), run_alone(reference, c, rows, start),
                   "i " + std::to_string(i_mean) + " f " + std::to_string(f_mean));
    }
  }
}

TEST_P(MlstmTest, NanStaysWithItsTimeAndHead) {
  KernelDevice reference("reference"), device = make_device();
  std::mt19937_64 random(3);
  for (const int chunk : {1, 16}) {
    const MlstmConfig c = config(2, 8, 20, chunk);
    for (int which = 0; which < 5; ++which) {
      MlstmRows rows = random_rows(c, 16, random);
      std::vector<float>* inputs[] = {&rows.q, &rows.k, &rows.v, &rows.i, &rows.f};
      (*inputs[which])[inputs[which]->size() * 9 / 16] = NAN;  // row 9
      const MlstmState start = random_state(c, random);
      const MlstmResult found = run_alone(device, c, rows, start);
      expect_close(found, run_alone(reference, c, rows, start),
                   describe(c, 16) + " input " + std::to_string(which));
      for (int t = 0; t < 9 * c.H * c.DV; ++t) ASSERT_TRUE(std::isfinite(found.h[t])) << t;
    }
  }
}

TEST_P(MlstmTest, AnySplitOnTheGridIsTheSame) {
  KernelDevice device = make_device();
  std::mt19937_64 random(4);
  const MlstmConfig c = config(2, 33, 70, 8);
  const MlstmRows rows = random_rows(c, 45, random);
  const MlstmState start = random_state(c, random);
  const MlstmResult whole = run_alone(device, c, rows, start);
  for (const std::vector<int>& sizes : std::vector<std::vector<int>>{
           {8, 8, 8, 8, 8, 5}, {16, 29}, {40, 5}, {8, 24, 13}, {32, 8, 5}}) {
    expect_same_bits(run_split(device, c, rows, start, sizes), whole,
                     std::to_string(sizes.size()) + " parts");
  }
}

TEST_P(MlstmTest, AChunkOfOneRowIsAStep) {
  KernelDevice device = make_device();
  std::mt19937_64 random(5);
  const MlstmConfig c = config(2, 16, 40, 8);
  MlstmConfig step = c;
  step.chunk = 1;
  const MlstmRows rows = random_rows(c, 9, random);
  const MlstmState start = random_state(c, random);
  const MlstmResult whole = run_alone(device, c, rows, start);
  const MlstmResult first = run_alone(device, c, part_of(c, rows, 0, 8), start);
  const MlstmResult last = run_alone(device, step, part_of(c, rows, 8, 1), first.state);
  expect_same_bits({whole.h, last.state}, whole, "state");
  EXPECT_TRUE(bit_equal(last.h, std::span(whole.h).last(last.h.size())));
}

// Decodes and prompts in one call, in any order and in any slots, are what each is alone.
TEST_P(MlstmTest, NeighboursAndSlotsChangeNothing) {
  KernelDevice device = make_device();
  std::mt19937_64 random(6);
  const MlstmConfig c = config(3, 20, 70, 16);
  const std::vector<int> lengths = {1, 37, 1, 16, 2, 1, 64};
  std::vector<MlstmSequence> batch;
  std::vector<MlstmResult> alone;
  for (const int L : lengths) {
    batch.push_back({random_rows(c, L, random), random_state(c, random), 0});
    alone.push_back(run_alone(device, c, batch.back().rows, batch.back().state));
  }
  std::vector<int> order = {0, 1, 2, 3, 4, 5, 6}, slots = {9, 1, 4, 7, 2, 0, 5};
  for (int round = 0; round < 4; ++round) {
    std::vector<MlstmSequence> shuffled;
    for (size_t b = 0; b < order.size(); ++b) {
      shuffled.push_back(batch[order[b]]);
      shuffled.back().slot = slots[b];
    }
    const std::vector<MlstmResult> found = run_mlstm(device, c, shuffled);
    for (size_t b = 0; b < order.size(); ++b) {
      expect_same_bits(found[b], alone[order[b]], "sequence " + std::to_string(order[b]));
    }
    std::shuffle(order.begin(), order.end(), random);
    std::shuffle(slots.begin(), slots.end(), random);
  }
}

// Large enough to be split over threads; with one head also by columns.
TEST_P(MlstmTest, ThreadsChangeNothing) {
  KernelDevice device = make_device(), alone(GetParam().device, 1);
  std::mt19937_64 random(7);
  for (const int H : {1, 2, 5}) {
    for (const int L : {1, 70}) {
      const MlstmConfig c = config(H, 64, 330, 32);
      const MlstmRows rows = random_rows(c, L, random);
      const MlstmState start = random_state(c, random);
      expect_same_bits(run_alone(device, c, rows, start), run_alone(alone, c, rows, start),
                       describe(c, L));
    }
  }
}

RECURVE_ON_EACH_DEVICE(MlstmTest);
RECURVE_ON_CUDA(MlstmTest);

}  // namespace
}  // namespace recurve::testing
