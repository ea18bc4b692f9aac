#pragma once
// The recurrences whose state is a matrix a head, mLSTM and the GLA family, as RecurrenceOps.
#include "tests/support/kernels/recurrence_case.h"

namespace recurve::testing {

// What the cell is and what numbers it meets.
struct MlstmConfig {
  int H = 2, DK = 8, DV = 8;
  int chunk = 4;
  float gate_soft_cap = 15;
  float eps = 1e-6f;
  float i_mean = 0, i_deviation = 3;
  float f_mean = 3, f_deviation = 2;
  bool head_norm = false;  // normalised and gated, by the values
  bool aligned = false;    // as RecurrenceOp has it

  // Columns of a row: q, k (H, DK), v (H, DV), i, f (H).
  int q(int head, int a) const { return head * DK + a; }
  int k(int head, int a) const { return (H + head) * DK + a; }
  int v(int head, int d) const { return 2 * H * DK + head * DV + d; }
  int i(int head) const { return H * (2 * DK + DV) + head; }
  int f(int head) const { return H * (2 * DK + DV + 1) + head; }
  int width() const { return H * (2 * DK + DV + 2); }
  // Places in a state: C (H, DK, DV), n (H, DK), m (H).
  int C(int head, int a, int d) const { return (head * DK + a) * DV + d; }
  int n(int head, int a) const { return H * DK * DV + head * DK + a; }
  int m(int head) const { return H * DK * (DV + 1) + head; }
};

// The output is a quotient. Its denominator |q . n| is made of sums that all have one sign, keys
// being positive and the channels of a query of one sign: where it nearly cancels, the output is
// ill-conditioned, and comparing two float programs means nothing.
inline std::vector<float> mlstm_rows(const MlstmConfig& c, int L, std::mt19937_64& random) {
  const int heads = c.H * c.DK;
  std::vector<float> rows = random_rows(
      {{2 * heads}, {c.H * c.DV}, {c.H, c.i_mean, c.i_deviation}, {c.H, c.f_mean, c.f_deviation}},
      L, random);
  for (int t = 0; t < L; ++t) {
    float* row = &rows[static_cast<size_t>(t) * c.width()];
    for (int at = 0; at < heads; ++at) {
      const float first = row[at / c.DK * c.DK];  // whose sign stays
      row[at] = std::copysign(row[at], first);
      row[heads + at] = std::fabs(row[heads + at]);
    }
  }
  return rows;
}

inline std::vector<float> mlstm_state(const MlstmConfig& c, std::mt19937_64& random) {
  const int heads = c.H * c.DK;
  std::vector<float> state = random_rows({{heads * (c.DV + 1)}, {c.H, 0, 3}}, 1, random);
  for (int at = 0; at < heads; ++at) {
    float& n = state[static_cast<size_t>(c.n(0, at))];
    n = std::fabs(n);
  }
  return state;
}

inline RecurrenceOp mlstm_op(const MlstmConfig& c) {
  RecurrenceOp op;
  op.name = "mlstm H " + std::to_string(c.H) + " DK " + std::to_string(c.DK) + " DV " +
            std::to_string(c.DV) + " chunk " + std::to_string(c.chunk) +
            (c.head_norm ? " head norm" : "") + (c.aligned ? " aligned" : "");
  op.aligned = c.aligned;
  op.rounded_columns = c.i(0);
  op.rounds = [c](const Kernels& kernels) {
    return kernels.mlstm.rounds_in_tiles && fills_tiles(c.DK, c.DV, c.chunk, c.aligned);
  };
  op.in = {c.width()};
  op.out = c.H * c.DV;
  op.state = {c.H * c.DK * c.DV, c.H * c.DK, c.H};
  op.grid = c.chunk;
  op.keeps_bf16 = [](const Kernels& kernels) { return kernels.mlstm.bf16_state; };
  // The exponents are sums of up to 70 values of a few units in fp32, in another order: off by up
  // to 70 x 5 x 2^-24 = 2e-5, and the weights by as much, relatively; the numerator may cancel.
  op.tolerance = {.absolute = 1e-4, .relative = 1e-4};
  op.inputs = [c](int L, std::mt19937_64& random) { return mlstm_rows(c, L, random); };
  op.some_state = [c](std::mt19937_64& random) { return mlstm_state(c, random); };
  op.run = [c](KernelDevice& device, const Ragged& seqs, const std::vector<RowArray>& in,
               const std::vector<const float*>&, const std::vector<StateData>& states, float* h) {
    const float* x = in[0].data;
    std::mt19937_64 random(1);
    const auto w = device.array(normal_floats(random, static_cast<size_t>(c.H) * c.DV));
    device.kernels().mlstm({.seqs = seqs,
                            .H = c.H,
                            .DK = c.DK,
                            .DV = c.DV,
                            .chunk = c.chunk,
                            .gate_soft_cap = c.gate_soft_cap,
                            .eps = c.eps,
                            .stride = in[0].stride,
                            .q = x + c.q(0, 0),
                            .k = x + c.k(0, 0),
                            .v = x + c.v(0, 0),
                            .i = x + c.i(0),
                            .f = x + c.f(0),
                            .C = states[0],
                            .n = states[1].f32(),
                            .m = states[2].f32(),
                            .h = h,
                            .o = x + c.v(0, 0),
                            .head_norm = c.head_norm ? w.data() : nullptr,
                            .head_norm_eps = 1e-5f},
                           *device.stream);
    device.stream->wait();  // while w is there
  };
  return op;
}

struct GlaConfig {
  int H = 2, DK = 8, DV = 8;
  int chunk = 4;
  GlaDecay decay = GlaDecay::kChannel;
  bool input_gate = false;
  bool normaliser = false;
  float g_mean = -0.1f, g_deviation = 0.1f;  // of the log decay, which is cut at 0
  float scale = 0.35f;
  float eps = 1e-6f;
  bool bounded = false;
  bool aligned = false;  // as RecurrenceOp has it

  // Log decays of a row; those of kHead are weights.
  int g_width() const {
    if (decay == GlaDecay::kChannel) return H * DK;
    return decay == GlaDecay::kToken ? H : 0;
  }
  // Columns of a row: q, k (H, DK), v (H, DV), g (g_width), i (H).
  int q(int head, int a) const { return head * DK + a; }
  int k(int head, int a) const { return (H + head) * DK + a; }
  int v(int head, int d) const { return 2 * H * DK + head * DV + d; }
  int g(int at) const { return H * (2 * DK + DV) + at; }
  int i(int head) const { return g(g_width()) + head; }
  int width() const { return i(H); }
  // Places in a state: S (H, DK, DV), z (H, DK) where there is a normaliser.
  int S(int head, int a, int d) const { return (head * DK + a) * DV + d; }
  int z(int head, int a) const { return H * DK * DV + head * DK + a; }
};

// With a normaliser queries and keys are positive, as where one is used; a bounded one takes any.
inline std::vector<float> gla_rows(const GlaConfig& c, int L, std::mt19937_64& random) {
  std::vector<float> rows = random_rows(
      {{2 * c.H * c.DK}, {c.H * c.DV}, {c.g_width(), c.g_mean, c.g_deviation}, {c.H, 0, 2}}, L,
      random);
  for (int t = 0; t < L; ++t) {
    float* row = &rows[static_cast<size_t>(t) * c.width()];
    for (int at = 0; c.normaliser && !c.bounded && at < c.v(0, 0); ++at) {
      row[at] = std::fabs(row[at]);
    }
    for (int at = c.g(0); at < c.i(0); ++at) row[at] = std::fmin(row[at], 0.0f);
    for (int at = c.i(0); at < c.width(); ++at) row[at] = -std::fabs(row[at]);
  }
  return rows;
}

inline std::vector<float> gla_state(const GlaConfig& c, std::mt19937_64& random) {
  const size_t S = static_cast<size_t>(c.z(0, 0)), z = c.normaliser ? c.H * c.DK : 0;
  std::vector<float> state = normal_floats(random, S + z);
  for (size_t at = S; !c.bounded && at < state.size(); ++at) state[at] = std::fabs(state[at]);
  return state;
}

inline const char* name_of(GlaDecay decay) {
  const char* const names[] = {"none", "head", "token", "channel"};
  return names[static_cast<int>(decay)];
}

// The weights: g (H) with kHead, else none.
inline RecurrenceOp gla_op(const GlaConfig& c, std::mt19937_64& random) {
  RecurrenceOp op;
  op.name = std::string("gla ") + name_of(c.decay) + (c.input_gate ? " gated" : "") +
            (c.normaliser ? " normalised" : "") + (c.bounded ? " bounded" : "") + " H " +
            std::to_string(c.H) + " DK " + std::to_string(c.DK) + " DV " + std::to_string(c.DV) +
            " chunk " + std::to_string(c.chunk) + " g " + std::to_string(c.g_mean);
  op.in = {c.H * c.DK, c.H * c.DK, c.H * c.DV, c.g_width() + c.H};
  op.out = c.H * c.DV;
  op.state = {c.H * c.DK * c.DV};
  if (c.normaliser) op.state.push_back(c.H * c.DK);
  op.grid = c.chunk;
  op.keeps_bf16 = [](const Kernels& kernels) { return kernels.gla.bf16_state; };
  op.aligned = c.aligned;
  op.rounded_columns = c.g(0);
  op.rounds = [c](const Kernels& kernels) {
    const bool channels = kernels.gla.rounds_channels_in_tiles && c.DK >= 64 && !c.normaliser;
    return kernels.gla.rounds_in_tiles && (c.decay != GlaDecay::kChannel || channels) &&
           fills_tiles(c.DK, c.DV, c.chunk, c.aligned);
  };
  // Sums of up to 70 rows times 33 channels of products of a few units each: a random walk of 2^-24
  // a step. Exponents are small sums, off by 2^-24 of their size. Values that cancel need the
  // absolute part.
  op.tolerance = {.absolute = 5e-5, .relative = 5e-5};
  const bool head = c.decay == GlaDecay::kHead;
  op.weights = {normal_floats(random, head ? c.H : 0, c.g_deviation, c.g_mean)};
  for (float& g : op.weights[0]) g = std::fmin(g, 0.0f);
  op.inputs = [c](int L, std::mt19937_64& r) { return gla_rows(c, L, r); };
  op.some_state = [c](std::mt19937_64& r) { return gla_state(c, r); };
  op.run = [c, head](KernelDevice& device, const Ragged& seqs, const std::vector<RowArray>& in,
                     const std::vector<const float*>& w, const std::vector<StateData>& states,
                     float* o) {
    const float* g = c.g_width() == 0 ? nullptr : in[3].data;
    device.kernels().gla({.seqs = seqs,
                          .H = c.H,
                          .DK = c.DK,
                          .DV = c.DV,
                          .chunk = c.chunk,
                          .decay = c.decay,
                          .scale = c.scale,
                          .eps = c.eps,
                          .bounded = c.bounded,
                          .q_stride = in[0].stride,
                          .k_stride = in[1].stride,
                          .v_stride = in[2].stride,
                          .g_stride = in[3].stride,
                          .q = in[0].data,
                          .k = in[1].data,
                          .v = in[2].data,
                          .g = head ? w[0] : g,
                          .i = c.input_gate ? in[3].data + c.g_width() : nullptr,
                          .S = states[0],
                          .z = c.normaliser ? states[1].f32() : nullptr,
                          .o = o},
                         *device.stream);
  };
  return op;
}

}  // namespace recurve::testing
