#pragma once
// Griffin's recurrence and its attention over a ring as RecurrenceOps, in sizes of choice. Both
// know where a row stands in its session: the last value of a state is that place, as the bits of
// an integer.
#include <bit>

#include "tests/support/kernels/recurrence_case.h"

namespace recurve::testing {

// A state of so many values, of a session that has seen 0 to 299 rows.
inline std::vector<float> state_with_place(int size, std::mt19937_64& random) {
  std::vector<float> state = normal_floats(random, size);
  state.push_back(std::bit_cast<float>(std::uniform_int_distribution<int32_t>(0, 299)(random)));
  return state;
}

inline DeviceArray<int32_t> places_of(KernelDevice& device, const Ragged& seqs,
                                      const StateData& count) {
  auto position = device.array(std::vector<int32_t>(static_cast<size_t>(seqs.rows)));
  device.kernels().positions(
      {.seqs = seqs, .count = static_cast<int32_t*>(count.data), .position = position.data()},
      *device.stream);
  return position;
}

// A row: u, i, r, branch (D each).
inline RecurrenceOp rg_lru_op(int D, std::mt19937_64& random) {
  RecurrenceOp op;
  op.name = "rg_lru D " + std::to_string(D);
  op.in = {4 * D};
  op.out = D;
  op.state = {D, 1};
  op.tolerance = {.absolute = 1e-5, .relative = 1e-5};
  std::vector<float> rate = normal_floats(random, D);
  for (float& value : rate) value = -8 * std::log1p(std::exp(3 * value - 3));
  op.weights = {rate};
  op.some_state = [D](std::mt19937_64& r) { return state_with_place(D, r); };
  op.inputs = [D](int L, std::mt19937_64& r) {
    return random_rows({{D}, {D, 0, 3}, {D, 0, 3}, {D}}, L, r);
  };
  op.run = [D](KernelDevice& device, const Ragged& seqs, const std::vector<RowArray>& in,
               const std::vector<const float*>& w, const std::vector<StateData>& states, float* y) {
    const auto position = places_of(device, seqs, states[1]);
    // The op wants u, i and r dense: parts of rows are brought together as the model's layers do.
    const auto dense = device.floats(static_cast<size_t>(3) * seqs.rows * D);
    for (int part = 0; part < 3; ++part) {
      device.kernels().activation({.rows = seqs.rows,
                                   .width = D,
                                   .f = Activation::kIdentity,
                                   .scale = 1,
                                   .floor = -INFINITY,
                                   .x_stride = in[0].stride,
                                   .y_stride = D,
                                   .x = in[0].data + part * D,
                                   .y = dense.data() + int64_t{part} * seqs.rows * D},
                                  *device.stream);
    }
    const int64_t array = int64_t{seqs.rows} * D;
    device.kernels().rg_lru({.seqs = seqs,
                             .D = D,
                             .chunk = 64,
                             .branch_stride = in[0].stride,
                             .u = dense.data(),
                             .i = dense.data() + array,
                             .r = dense.data() + 2 * array,
                             .branch = in[0].data + 3 * D,
                             .rate = w[0],
                             .position = position.data(),
                             .h = states[0].f32(),
                             .y = y},
                            *device.stream);
    device.stream->wait();
  };
  return op;
}

struct RingSize {
  int H, HK, D, W;
  bool aligned = false;
};

// A row: q (H, D), k and v (HK, D) each.
inline RecurrenceOp ring_attention_op(const RingSize& c) {
  RecurrenceOp op;
  op.name = "ring_attention H " + std::to_string(c.H) + " HK " + std::to_string(c.HK) + " D " +
            std::to_string(c.D) + " W " + std::to_string(c.W);
  const int width = c.HK * c.D;
  op.in = {c.H * c.D, width, width};
  op.out = c.H * c.D;
  op.state = {c.W * width, c.W * width, 1};
  op.aligned = c.aligned;
  op.tolerance = {.absolute = 1e-5, .relative = 1e-5};
  op.some_state = [=](std::mt19937_64& r) { return state_with_place(2 * c.W * width, r); };
  op.inputs = [=](int L, std::mt19937_64& r) {
    return random_rows({{c.H * c.D, 0, 2}, {2 * width}}, L, r);
  };
  op.run = [=](KernelDevice& device, const Ragged& seqs, const std::vector<RowArray>& in,
               const std::vector<const float*>&, const std::vector<StateData>& states, float* o) {
    const auto position = places_of(device, seqs, states[2]);
    device.kernels().ring_attention({.seqs = seqs,
                                     .H = c.H,
                                     .HK = c.HK,
                                     .D = c.D,
                                     .W = c.W,
                                     .scale = 1 / std::sqrt(static_cast<float>(c.D)),
                                     .q_stride = in[0].stride,
                                     .k_stride = in[1].stride,
                                     .v_stride = in[2].stride,
                                     .q = in[0].data,
                                     .k = in[1].data,
                                     .v = in[2].data,
                                     .position = position.data(),
                                     .ring_k = states[0].f32(),
                                     .ring_v = states[1].f32(),
                                     .o = o},
                                    *device.stream);
    device.stream->wait();
  };
  return op;
}

}  // namespace recurve::testing
