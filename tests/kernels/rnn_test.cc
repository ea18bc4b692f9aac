// Recurrent cells: the reference against the textbooks' equations in double, every device against
// the reference, and what must not change a bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "tests/support/compare.h"
#include "tests/support/kernel_device.h"

namespace recurve::testing {
namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

struct RnnConfig {
  RnnCell cell = RnnCell::kLstm;
  int H = 2, DH = 5;
  bool bias = true;
  float n_min = 0;
  DType type = DType::kF32;

  int D() const { return H * DH; }
  int gates() const { return gates_of(cell); }
};

// The state arrays of a slot, (D) each, in the order h, c, n, m; those a cell has none of are there
// and must stay as they are.
using RnnState = std::array<Floats, 4>;

struct Weights {
  Floats R;  // (H, gates, DH, DH), as the type stores it
  Floats b;  // (gates, H, DH)
};

struct RnnSequence {
  Floats x;  // (L, gates, H, DH)
  RnnState state;
  int slot = 1;
  int L(const RnnConfig& c) const { return static_cast<int>(x.size()) / (c.gates() * c.D()); }
};

struct RnnResult {
  Floats y;  // (L, D)
  RnnState state;
};

Weights random_weights(const RnnConfig& c, std::mt19937_64& random) {
  const float deviation = 1 / std::sqrt(static_cast<float>(c.DH));
  const size_t count = static_cast<size_t>(c.gates()) * c.D();
  return {rounded(normal_floats(random, count * c.DH, deviation), c.type),
          normal_floats(random, count)};
}

RnnState zero_state(const RnnConfig& c) {
  RnnState state;
  state.fill(Floats(c.D()));
  return state;
}

RnnState random_state(const RnnConfig& c, std::mt19937_64& random) {
  RnnState state = zero_state(c);
  for (Floats& array : state) array = normal_floats(random, c.D());
  for (float& n : state[2]) n = std::fabs(n) + 0.1f;
  return state;
}

RnnSequence random_sequence(const RnnConfig& c, int L, std::mt19937_64& random) {
  return {normal_floats(random, static_cast<size_t>(L) * c.gates() * c.D(), 2),
          random_state(c, random)};
}

// Runs the sequences as one batch; the rows of x have a gap. Slots nobody owns are NaN.
std::vector<RnnResult> run(KernelDevice& device, const RnnConfig& c, const Weights& weights,
                           const std::vector<RnnSequence>& batch) {
  const int width = c.gates() * c.D(), stride = width + 3;
  std::vector<int32_t> begin = {0}, slot;
  Floats x;
  int slots = 1, max_len = 0;
  for (const RnnSequence& seq : batch) {
    const int L = seq.L(c);
    begin.push_back(begin.back() + L);
    slot.push_back(seq.slot);
    slots = std::max(slots, seq.slot + 1);
    max_len = std::max(max_len, L);
    for (int t = 0; t < L; ++t) {
      x.insert(x.end(), seq.x.begin() + t * width, seq.x.begin() + (t + 1) * width);
      x.resize(x.size() + 3, NAN);
    }
  }
  std::vector<DeviceArray<float>> arrays;
  for (size_t a = 0; a < 4; ++a) {
    Floats values(static_cast<size_t>(slots) * c.D(), NAN);
    for (const RnnSequence& seq : batch) {
      std::copy(seq.state[a].begin(), seq.state[a].end(), values.begin() + seq.slot * c.D());
    }
    arrays.push_back(device.array(values));
  }
  const auto x_array = device.array(x), b = device.array(weights.b);
  const auto R = device.array(stored(weights.R, c.type));
  const auto begins = device.array(begin), slot_ids = device.array(slot);
  const auto y_array = device.floats(static_cast<size_t>(begin.back()) * c.D());
  const bool lstm = c.cell == RnnCell::kLstm, slstm = c.cell == RnnCell::kSlstm;
  device.kernels().rnn({.seqs = {static_cast<int>(batch.size()), begin.back(), max_len,
                                 begins.data(), slot_ids.data()},
                        .cell = c.cell,
                        .H = c.H,
                        .DH = c.DH,
                        .n_min = c.n_min,
                        .x_stride = stride,
                        .x = x_array.data(),
                        .R = {c.type, c.gates() * c.D(), c.DH, R.data()},
                        .b = c.bias ? b.data() : nullptr,
                        .h = arrays[0].data(),
                        .c = lstm || slstm ? arrays[1].data() : nullptr,
                        .n = slstm ? arrays[2].data() : nullptr,
                        .m = slstm ? arrays[3].data() : nullptr,
                        .y = y_array.data()},
                       *device.stream);
  EXPECT_TRUE(y_array.guards_intact());
  const Floats y = y_array.read();
  std::vector<RnnResult> results;
  for (size_t b_at = 0; b_at < batch.size(); ++b_at) {
    results.push_back(
        {Floats(y.begin() + begin[b_at] * c.D(), y.begin() + begin[b_at + 1] * c.D()), RnnState()});
  }
  for (size_t a = 0; a < 4; ++a) {
    EXPECT_TRUE(arrays[a].guards_intact());
    const Floats values = arrays[a].read();
    std::vector<bool> owned(slots, false);
    for (size_t s = 0; s < batch.size(); ++s) {
      const auto first = values.begin() + batch[s].slot * c.D();
      results[s].state[a] = Floats(first, first + c.D());
      owned[batch[s].slot] = true;
    }
    for (int s = 0; s < slots; ++s) EXPECT_TRUE(owned[s] || std::isnan(values[s * c.D()])) << s;
  }
  return results;
}

RnnResult run_alone(KernelDevice& device, const RnnConfig& c, const Weights& weights,
                    const RnnSequence& seq) {
  return run(device, c, weights, {seq})[0];
}

// ---- the equations, in double, over whole vectors

double sig(double x) { return 1 / (1 + std::exp(-x)); }

RnnResult oracle(const RnnConfig& c, const Weights& weights, const RnnSequence& seq) {
  const int D = c.D(), G = c.gates();
  std::array<Doubles, 4> state;
  for (size_t a = 0; a < 4; ++a) state[a] = Doubles(seq.state[a].begin(), seq.state[a].end());
  auto& [h, cell, n, m] = state;
  RnnResult result;
  for (int t = 0; t < seq.L(c); ++t) {
    // The block-diagonal matrix of gate j, all heads, times h; and the input.
    const auto recurrent = [&, before = h](int j, int d) {
      double sum = c.bias ? weights.b[j * D + d] : 0.0;
      for (int from = 0; from < D; ++from) {
        if (from / c.DH != d / c.DH) continue;
        const int row = (d / c.DH * G + j) * c.DH + d % c.DH;
        sum += double{weights.R[row * c.DH + from % c.DH]} * before[from];
      }
      return sum;
    };
    const auto input = [&](int j, int d) { return double{seq.x[(t * G + j) * D + d]}; };
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
  for (size_t a = 0; a < 4; ++a) result.state[a] = Floats(state[a].begin(), state[a].end());
  return result;
}

// Dot products of up to 70 values of size 1, then tanh and sigmoid; errors come back through R.
constexpr Tolerance kTolerance = {.absolute = 2e-5, .relative = 2e-5};

void expect_close(const RnnResult& found, const RnnResult& wanted, const std::string& what) {
  EXPECT_TRUE(close(found.y, wanted.y, kTolerance)) << what << ": y";
  for (size_t a = 0; a < 4; ++a) {
    EXPECT_TRUE(close(found.state[a], wanted.state[a], kTolerance)) << what << ": "
                                                                    << "hcnm"[a];
  }
}

void expect_same_bits(const RnnResult& found, const RnnResult& wanted, const std::string& what) {
  EXPECT_TRUE(bit_equal(found.y, wanted.y)) << what << ": y";
  for (size_t a = 0; a < 4; ++a) {
    EXPECT_TRUE(bit_equal(found.state[a], wanted.state[a])) << what << ": "
                                                            << "hcnm"[a];
  }
}

std::vector<std::pair<std::string, RnnConfig>> configs() {
  std::vector<std::pair<std::string, RnnConfig>> all;
  for (const auto& [name, cell, n_min] :
       std::vector<std::tuple<std::string, RnnCell, float>>{{"elman", RnnCell::kElman, 0},
                                                            {"lstm", RnnCell::kLstm, 0},
                                                            {"gru", RnnCell::kGru, 0},
                                                            {"flash_gru", RnnCell::kFlashGru, 0},
                                                            {"slstm", RnnCell::kSlstm, 0},
                                                            {"slstm_1", RnnCell::kSlstm, 1}}) {
    for (const auto& [H, DH] : {std::pair{1, 1}, {1, 16}, {3, 5}, {4, 33}, {2, 70}}) {
      all.push_back(
          {name + "_" + std::to_string(H) + "x" + std::to_string(DH), {cell, H, DH, true, n_min}});
    }
    all.push_back({name + "_no_bias", {cell, 2, 8, false, n_min}});
    all.push_back({name + "_bf16", {cell, 2, 24, true, n_min, DType::kBF16}});
  }
  return all;
}

TEST(RnnReference, IsTheEquations) {
  KernelDevice device("reference");
  std::mt19937_64 random(1);
  for (const auto& [name, c] : configs()) {
    const Weights weights = random_weights(c, random);
    for (const int L : {1, 2, 20}) {
      RnnSequence seq = random_sequence(c, L, random);
      expect_close(run_alone(device, c, weights, seq), oracle(c, weights, seq), name);
      seq.state = zero_state(c);
      expect_close(run_alone(device, c, weights, seq), oracle(c, weights, seq),
                   name + " from zero");
    }
  }
}

// The first row of an sLSTM takes its input whole, however small its gate; and each value decides
// for itself whether it is the first.
TEST(RnnReference, SlstmStartsAtItsFirstInput) {
  KernelDevice device("reference");
  RnnConfig c{RnnCell::kSlstm, 2, 1, false};
  const Weights weights{Floats(8, 0), {}};
  // Gates i, f, z, o of the two channels; i so small that exp(i) is zero.
  RnnSequence seq{{-200, -200, 0, 0, 1, 1, 0, 0}, zero_state(c)};
  seq.state[2][1] = 2;  // the second channel has a past, with m = 0
  seq.state[1][1] = 3;
  const RnnResult result = run_alone(device, c, weights, seq);
  EXPECT_FLOAT_EQ(result.y[0], 0.5f * std::tanh(1.0f));
  EXPECT_FLOAT_EQ(result.y[1], 0.5f * 3 / 2);
  EXPECT_FLOAT_EQ(result.state[3][0], -200);
  EXPECT_FLOAT_EQ(result.state[3][1], -std::log(2.0f));
}

TEST(RnnReference, SaturatedGatesStayFinite) {
  KernelDevice device("reference");
  std::mt19937_64 random(3);
  for (const auto& [name, c] : configs()) {
    const Weights weights = random_weights(c, random);
    RnnSequence seq = random_sequence(c, 10, random);
    for (float& x : seq.x) x *= 200;
    const RnnResult result = run_alone(device, c, weights, seq);
    for (const float y : result.y) ASSERT_TRUE(std::isfinite(y) && std::fabs(y) <= 30) << name;
  }
}

void expect_cuts_and_neighbours_change_nothing(KernelDevice& device, const RnnConfig& c) {
  std::mt19937_64 random(4);
  const Weights weights = random_weights(c, random);
  std::vector<RnnSequence> batch;
  std::vector<RnnResult> alone;
  for (const int L : {1, 9, 1, 4, 2, 17}) {
    batch.push_back(random_sequence(c, L, random));
    alone.push_back(run_alone(device, c, weights, batch.back()));
  }
  const std::vector<int> slots = {9, 1, 4, 7, 2, 5};
  std::vector<RnnSequence> moved(batch.rbegin(), batch.rend());
  for (size_t b = 0; b < moved.size(); ++b) moved[b].slot = slots[b];
  const std::vector<RnnResult> found = run(device, c, weights, moved);
  for (size_t b = 0; b < found.size(); ++b) {
    expect_same_bits(found[b], alone[found.size() - 1 - b], "sequence " + std::to_string(b));
  }
  RnnSequence part = batch.back();
  RnnResult joined;
  size_t first = 0;
  for (const int L : {1, 5, 3, 8}) {
    const size_t width = static_cast<size_t>(c.gates()) * c.D();
    part.x.assign(batch.back().x.begin() + static_cast<ptrdiff_t>(first * width),
                  batch.back().x.begin() + static_cast<ptrdiff_t>((first + L) * width));
    const RnnResult result = run_alone(device, c, weights, part);
    joined.y.insert(joined.y.end(), result.y.begin(), result.y.end());
    joined.state = part.state = result.state;
    first += L;
  }
  expect_same_bits(joined, alone.back(), "in parts");
}

TEST(RnnReference, CutsAndNeighboursChangeNothing) {
  KernelDevice device("reference");
  for (const auto& [name, c] : configs()) {
    SCOPED_TRACE(name);
    expect_cuts_and_neighbours_change_nothing(device, c);
  }
}

class RnnTest : public DeviceTest {};

TEST_P(RnnTest, MatchesTheReference) {
  KernelDevice reference("reference"), device = make_device();
  std::mt19937_64 random(5);
  for (const auto& [name, c] : configs()) {
    const Weights weights = random_weights(c, random);
    for (const int L : {1, 3, 20}) {
      const RnnSequence seq = random_sequence(c, L, random);
      expect_close(run_alone(device, c, weights, seq), run_alone(reference, c, weights, seq), name);
    }
  }
}

TEST_P(RnnTest, CutsAndNeighboursChangeNothing) {
  KernelDevice device = make_device();
  for (const auto& [name, c] : configs()) {
    SCOPED_TRACE(name);
    expect_cuts_and_neighbours_change_nothing(device, c);
  }
}

RECURVE_ON_EACH_DEVICE(RnnTest);

}  // namespace
}  // namespace recurve::testing
