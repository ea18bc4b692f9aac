#pragma once
// The delta rule as a RecurrenceOp, in sizes and with keys and decays of choice.
#include "tests/support/kernels/recurrence_case.h"

namespace recurve::testing {

// What keys, decays and the part of a value that is replaced are like.
enum class DeltaRows {
  kUsual,
  kParallelKeys,  // nearly the same key in all rows, replaced all but wholly
  kTwice,         // beta near 2: what is under a key all but changes its sign
  kForgetful,     // decays down to exp(-30) a row, some of them none
  kSlow,          // next to no decay
  kZeroKeys,      // nothing is put in
  kBetaZero,      // nothing is put in either
};

struct DeltaConfig {
  int HK = 2, heads_each = 1, DK = 8, DV = 8;
  int chunk = 4;
  DeltaDecay decay = DeltaDecay::kToken;
  DeltaRows rows = DeltaRows::kUsual;
  bool aligned = false;

  int H() const { return HK * heads_each; }
  int decays() const {
    return decay == DeltaDecay::kNone ? 0 : H() * (decay == DeltaDecay::kChannel ? DK : 1);
  }
  // Columns of a row: q, k, v, g, beta.
  int k_at() const { return HK * DK; }
  int v_at() const { return 2 * HK * DK; }
  int g_at() const { return v_at() + H() * DV; }
  int beta_at() const { return g_at() + decays(); }
  int width() const { return beta_at() + H(); }
  bool bounded_beta() const { return rows != DeltaRows::kTwice; }
  // Whether the rows of its heads can be taken by tiles: see Op::rounds_in_tiles.
  bool fills_tiles() const {
    const bool keys = DK == 64 || DK == 128 || DK == 256, aligns = aligned && width() % 4 == 0;
    return bounded_beta() && decay != DeltaDecay::kChannel && keys && DV % 64 == 0 &&
           chunk % 64 == 0 && aligns;
  }
};

inline void make_unit_key(const DeltaConfig& c, float* key, std::mt19937_64& random) {
  const bool parallel = c.rows == DeltaRows::kParallelKeys || c.rows == DeltaRows::kTwice;
  const std::vector<float> noise = normal_floats(random, c.DK, parallel ? 0.05f : 1, parallel);
  double squares = 0;
  for (const float value : noise) squares += double{value} * value;
  const double length = c.rows == DeltaRows::kZeroKeys ? INFINITY : std::sqrt(squares);
  for (int a = 0; a < c.DK; ++a) key[a] = static_cast<float>(noise[a] / length);
}

inline std::vector<float> delta_rows(const DeltaConfig& c, int L, std::mt19937_64& random) {
  std::vector<float> rows = random_rows({{c.width()}}, L, random);
  std::uniform_real_distribution<float> uniform(0, 1);
  for (int t = 0; t < L; ++t) {
    float* row = &rows[static_cast<size_t>(t) * c.width()];
    for (int head = 0; head < c.HK; ++head) {
      make_unit_key(c, row + c.k_at() + head * c.DK, random);
    }
    for (int i = 0; i < c.decays(); ++i) {
      float& g = row[c.g_at() + i];
      g = -uniform(random);
      if (c.rows == DeltaRows::kForgetful) g = uniform(random) < 0.3f ? 0 : 30 * g;
      if (c.rows == DeltaRows::kSlow) g *= 1e-4f;
    }
    for (int head = 0; head < c.H(); ++head) {
      float& beta = row[c.beta_at() + head];
      beta = uniform(random);
      if (c.rows == DeltaRows::kParallelKeys) beta = 0.99f;
      if (c.rows == DeltaRows::kTwice) beta = 1.99f;
      if (c.rows == DeltaRows::kBetaZero) beta = 0;
    }
  }
  return rows;
}

inline RecurrenceOp delta_rule_op(const DeltaConfig& c) {
  RecurrenceOp op;
  op.name = "delta_rule HK " + std::to_string(c.HK) + " H " + std::to_string(c.H()) + " DK " +
            std::to_string(c.DK) + " DV " + std::to_string(c.DV) + " chunk " +
            std::to_string(c.chunk) + " decay " + std::to_string(static_cast<int>(c.decay)) +
            " rows " + std::to_string(static_cast<int>(c.rows)) + (c.aligned ? " aligned" : "");
  op.in = {c.width()};
  op.out = c.H() * c.DV;
  op.state = {c.H() * c.DK * c.DV};
  op.grid = c.chunk;
  op.aligned = c.aligned;
  op.keeps_bf16 = [](const Kernels& kernels) { return kernels.delta_rule.bf16_state; };
  op.rounded_columns = c.g_at();
  op.rounds = [c](const Kernels& kernels) {
    return kernels.delta_rule.rounds_in_tiles && c.fills_tiles();
  };
  // Where the reference rounds keys and values, tiles round keys, what is missing of values, the
  // inverse that finds what is put in their place, that, and the state it is found from.
  op.rounds_times = 2;
  // Sums of up to 70 rows of DK products of a few units each, in another order.
  op.tolerance = {.absolute = 1e-4, .relative = 5e-5};
  op.inputs = [c](int L, std::mt19937_64& random) { return delta_rows(c, L, random); };
  op.run = [c](KernelDevice& device, const Ragged& seqs, const std::vector<RowArray>& in,
               const std::vector<const float*>&, const std::vector<StateData>& states, float* o) {
    const float* x = in[0].data;
    const int stride = in[0].stride;
    const bool fades = c.decay != DeltaDecay::kNone;
    device.kernels().delta_rule({.seqs = seqs,
                                 .H = c.H(),
                                 .HK = c.HK,
                                 .DK = c.DK,
                                 .DV = c.DV,
                                 .chunk = c.chunk,
                                 .decay = c.decay,
                                 .scale = 1 / std::sqrt(static_cast<float>(c.DK)),
                                 .q_stride = stride,
                                 .k_stride = stride,
                                 .v_stride = stride,
                                 .g_stride = fades ? stride : 0,
                                 .beta_stride = stride,
                                 .q = x,
                                 .k = x + c.k_at(),
                                 .v = x + c.v_at(),
                                 .g = fades ? x + c.g_at() : nullptr,
                                 .beta = x + c.beta_at(),
                                 .S = states[0],
                                 .o = o,
                                 .bounded_beta = c.bounded_beta()},
                                *device.stream);
  };
  return op;
}

}  // namespace recurve::testing
