#pragma once
// The recurrent cells as RecurrenceOps.
#include "tests/support/kernels/recurrence_case.h"

namespace recurve::testing {

struct RnnConfig {
  RnnCell cell = RnnCell::kLstm;
  int H = 2, DH = 5;
  bool bias = true;
  float n_min = 0;
  DType type = DType::kF32;

  int D() const { return H * DH; }
  int gates() const { return gates_of(cell); }
  // Arrays of states: h, c, n, m as far as the cell has them.
  int states() const {
    if (cell == RnnCell::kSlstm) return 4;
    return cell == RnnCell::kLstm ? 2 : 1;
  }
};

inline const char* name_of(RnnCell cell) {
  const char* const names[] = {"elman", "lstm", "gru", "flash_gru", "slstm"};
  return names[static_cast<int>(cell)];
}

// A row: x (gates, H, DH). A state: h, c, n, m (D) each, as far as there are. R (H, gates, DH, DH)
// as the type holds it; b (gates, H, DH) or empty.
inline RecurrenceOp rnn_op(const RnnConfig& c, const std::vector<float>& R,
                           const std::vector<float>& b) {
  RecurrenceOp op;
  op.name = std::string(name_of(c.cell)) + " H " + std::to_string(c.H) + " DH " +
            std::to_string(c.DH) + (c.bias ? "" : " no bias") +
            (c.type == DType::kBF16 ? " bf16" : "") + (c.n_min == 0 ? "" : " n_min");
  op.in = {c.gates() * c.D()};
  op.out = c.D();
  op.state.assign(c.states(), c.D());
  // Dot products of up to 70 values of size 1, then tanh and sigmoid; errors come back through R.
  op.tolerance = {.absolute = 2e-5, .relative = 2e-5};
  op.weights = {b};
  op.matrix = R;
  op.inputs = [c](int L, std::mt19937_64& random) {
    return normal_floats(random, static_cast<size_t>(L) * c.gates() * c.D(), 2);
  };
  op.some_state = [c](std::mt19937_64& random) {
    std::vector<float> state = normal_floats(random, static_cast<size_t>(c.states()) * c.D());
    for (int at = 2 * c.D(); c.states() == 4 && at < 3 * c.D(); ++at) {
      state[at] = std::fabs(state[at]) + 0.1f;  // n
    }
    return state;
  };
  op.run = [c, stored_R = stored(R, c.type)](
               KernelDevice& device, const Ragged& seqs, const std::vector<RowArray>& in,
               const std::vector<const float*>& w, const std::vector<StateData>& states, float* y) {
    const auto matrix = device.array(stored_R);
    const auto state = [&](size_t i) { return i < states.size() ? states[i].f32() : nullptr; };
    device.kernels().rnn({.seqs = seqs,
                          .cell = c.cell,
                          .H = c.H,
                          .DH = c.DH,
                          .n_min = c.n_min,
                          .x_stride = in[0].stride,
                          .x = in[0].data,
                          .R = {c.type, c.gates() * c.D(), c.DH, matrix.data()},
                          .b = w[0],
                          .h = state(0),
                          .c = state(1),
                          .n = state(2),
                          .m = state(3),
                          .y = y},
                         *device.stream);
  };
  return op;
}

inline RecurrenceOp rnn_op(const RnnConfig& c, std::mt19937_64& random) {
  const size_t count = static_cast<size_t>(c.gates()) * c.D();
  const float deviation = 1 / std::sqrt(static_cast<float>(c.DH));
  const auto R = rounded(normal_floats(random, count * c.DH, deviation), c.type);
  return rnn_op(c, R, normal_floats(random, c.bias ? count : 0));
}

}  // namespace recurve::testing
