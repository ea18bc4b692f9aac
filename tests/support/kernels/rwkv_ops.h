#pragma once
// RWKV-7's recurrence and its token shift as RecurrenceOps, in sizes of choice.
#include "tests/support/kernels/recurrence_case.h"

namespace recurve::testing {

// How strong a key of unit length is replaced and how fast a state fades.
enum class Rwkv7Rows {
  kUsual,
  kParallelKeys,  // nearly the same key in all rows, replaced all but wholly
  kAtTheBound,    // all decays as fast as there are
  kSlow,          // next to no decay
  kZeroKeys,      // nothing is replaced
};

struct Rwkv7Config {
  int H = 2, N = 8;
  int chunk = 4;
  Rwkv7Rows rows = Rwkv7Rows::kUsual;
  bool aligned = false;  // rows begin at multiples of 16 bytes, as those of models do

  // Columns of a row: r, lw, k, v, kk, alpha, each (H, N).
  int column(int array, int head = 0) const { return (array * H + head) * N; }
  int width() const { return column(6); }
};

inline void make_keys(const Rwkv7Config& c, float* kk, std::mt19937_64& random) {
  const bool parallel = c.rows == Rwkv7Rows::kParallelKeys;
  const std::vector<float> noise = normal_floats(random, c.N, parallel ? 0.05f : 1, parallel);
  double squares = 0;
  for (const float value : noise) squares += double{value} * value;
  const double length = c.rows == Rwkv7Rows::kZeroKeys ? INFINITY : std::sqrt(squares);
  for (int a = 0; a < c.N; ++a) kk[a] = static_cast<float>(noise[a] / length);
}

inline std::vector<float> rwkv7_rows(const Rwkv7Config& c, int L, std::mt19937_64& random) {
  const int D = c.H * c.N;
  std::vector<float> rows =
      random_rows({{D}, {D, 0, 2}, {D, 0, 0.5f}, {2 * D}, {D, 0.5f, 2}}, L, random);
  const auto sigmoid = [](float x) { return 1 / (1 + std::exp(-x)); };
  for (int t = 0; t < L; ++t) {
    float* row = &rows[static_cast<size_t>(t) * c.width()];
    for (int head = 0; head < c.H; ++head) make_keys(c, row + c.column(4, head), random);
    for (int at = 0; at < D; ++at) {
      float& lw = row[c.column(1) + at];
      lw = -0.60653066f * sigmoid(lw);
      if (c.rows == Rwkv7Rows::kAtTheBound) lw = -0.60653064f;
      if (c.rows == Rwkv7Rows::kSlow) lw *= 1e-4f;
      float& alpha = row[c.column(5) + at];
      alpha = c.rows == Rwkv7Rows::kParallelKeys ? 0.99f : sigmoid(alpha);
    }
  }
  return rows;
}

inline RecurrenceOp rwkv7_op(const Rwkv7Config& c) {
  RecurrenceOp op;
  op.name = "rwkv7 H " + std::to_string(c.H) + " N " + std::to_string(c.N) + " chunk " +
            std::to_string(c.chunk) + " rows " + std::to_string(static_cast<int>(c.rows)) +
            (c.aligned ? " aligned" : "");
  op.in = {c.width()};
  op.out = c.H * c.N;
  op.state = {c.H * c.N * c.N};
  op.grid = c.chunk;
  op.aligned = c.aligned;
  op.keeps_bf16 = [](const Kernels& kernels) { return kernels.rwkv7.bf16_state; };
  // Sums of up to 70 rows of N products of a few units each, in another order.
  op.tolerance = {.absolute = 1e-4, .relative = 5e-5};
  op.inputs = [c](int L, std::mt19937_64& random) { return rwkv7_rows(c, L, random); };
  op.run = [c](KernelDevice& device, const Ragged& seqs, const std::vector<RowArray>& in,
               const std::vector<const float*>&, const std::vector<StateData>& states, float* o) {
    const float* x = in[0].data;
    device.kernels().rwkv7({.seqs = seqs,
                            .H = c.H,
                            .N = c.N,
                            .chunk = c.chunk,
                            .stride = in[0].stride,
                            .r = x + c.column(0),
                            .lw = x + c.column(1),
                            .k = x + c.column(2),
                            .v = x + c.column(3),
                            .kk = x + c.column(4),
                            .alpha = x + c.column(5),
                            .S = states[0],
                            .o = o},
                           *device.stream);
  };
  return op;
}

// One reader. A row: x (D). The weights: mu (D).
inline RecurrenceOp token_shift_op(int D, std::mt19937_64& random) {
  RecurrenceOp op;
  op.name = "token_shift D " + std::to_string(D);
  op.in = {D};
  op.out = D;
  op.state = {D};
  op.tolerance = {.absolute = 1e-6, .relative = 1e-6};
  op.weights = {normal_floats(random, D)};
  op.inputs = [D](int L, std::mt19937_64& r) { return random_rows({{D}}, L, r); };
  op.run = [D](KernelDevice& device, const Ragged& seqs, const std::vector<RowArray>& in,
               const std::vector<const float*>& w, const std::vector<StateData>& states, float* y) {
    device.kernels().token_shift({.seqs = seqs,
                                  .D = D,
                                  .n = 1,
                                  .x_stride = in[0].stride,
                                  .x = in[0].data,
                                  .mu = {w[0]},
                                  .state = states[0].f32(),
                                  .y = {y}},
                                 *device.stream);
  };
  return op;
}

}  // namespace recurve::testing
