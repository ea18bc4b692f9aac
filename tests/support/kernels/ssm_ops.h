#pragma once
// The recurrences of Mamba as RecurrenceOps, in sizes of choice.
#include "tests/support/kernels/held_rows.h"
#include "tests/support/kernels/recurrence_case.h"

namespace recurve::testing {

// Negative, from slow to fast.
inline std::vector<float> random_decays(std::mt19937_64& random, size_t count) {
  std::vector<float> values = normal_floats(random, count, 1.5f);
  for (float& value : values) value = -std::exp(value);
  return values;
}

// Two float programs, each within 3e-5 of the exact sum (ssm_reference_test.cc).
inline constexpr Tolerance kSsmTolerance = {.absolute = 6e-5, .relative = 6e-5};

struct ConvSize {
  int D, width;
  bool silu = true, bias = true, aligned = false;
};

// A row: x (D). The weights: w (D, width), bias (D).
inline RecurrenceOp conv_op(const ConvSize& c, std::mt19937_64& random) {
  RecurrenceOp op;
  op.name = "causal_conv1d D " + std::to_string(c.D) + " width " + std::to_string(c.width);
  op.in = {c.D};
  op.out = c.D;
  op.state = {c.D * (c.width - 1)};
  op.aligned = c.aligned;
  op.tolerance = kSsmTolerance;
  op.weights = {normal_floats(random, static_cast<size_t>(c.D) * c.width),
                normal_floats(random, c.bias ? c.D : 0)};
  op.inputs = [c](int L, std::mt19937_64& r) { return random_rows({{c.D}}, L, r); };
  op.run = [c](KernelDevice& device, const Ragged& seqs, const std::vector<RowArray>& in,
               const std::vector<const float*>& w, const std::vector<StateData>& states, float* y) {
    device.kernels().causal_conv1d({.seqs = seqs,
                                    .D = c.D,
                                    .width = c.width,
                                    .silu = c.silu,
                                    .x_stride = in[0].stride,
                                    .x = in[0].data,
                                    .w = w[0],
                                    .bias = w[1],
                                    .state = states[0].f32(),
                                    .y = y},
                                   *device.stream);
  };
  return op;
}

struct ScanSize {
  int D, N, chunk = 4;
  bool gate = true;
  float dt_mean = -2, dt_deviation = 2;
  int R = 3;
  DType type = DType::kF32;  // of the projection of the time steps
  float norm_eps = 0;
  bool aligned = false;

  // Columns of a row: x (D), low (R), B (N), C (N), z (D).
  int low() const { return D; }
  int B() const { return low() + R; }
  int C() const { return B() + N; }
  int z() const { return C() + N; }
};

// The weights: dt_bias (D), A (D, N), skip (D), dt_proj (D, R) as the type holds it.
inline RecurrenceOp scan_op(const ScanSize& c, std::mt19937_64& random) {
  RecurrenceOp op;
  op.name = "selective_scan D " + std::to_string(c.D) + " N " + std::to_string(c.N) + " R " +
            std::to_string(c.R);
  op.in = {c.D, c.R + 2 * c.N, c.D};
  op.out = c.D;
  op.state = {c.D * c.N};
  op.grid = c.chunk;
  op.keeps_bf16 = [](const Kernels& kernels) { return kernels.selective_scan.bf16_state; };
  op.aligned = c.aligned;
  op.tolerance = kSsmTolerance;
  const float deviation = c.dt_deviation / std::sqrt(static_cast<float>(c.R));
  op.weights = {normal_floats(random, c.D, 1, c.dt_mean), random_decays(random, op.state_size()),
                normal_floats(random, c.D),
                rounded(normal_floats(random, static_cast<size_t>(c.D) * c.R, deviation), c.type)};
  op.inputs = [c](int L, std::mt19937_64& r) {
    return random_rows({{c.D}, {c.R}, {c.N}, {c.N}, {c.D}}, L, r);
  };
  op.run = [c, dt_proj = stored(op.weights[3], c.type)](
               KernelDevice& device, const Ragged& seqs, const std::vector<RowArray>& in,
               const std::vector<const float*>& w, const std::vector<StateData>& states, float* y) {
    const auto matrix = device.array(dt_proj);
    const auto scratch = device.floats(static_cast<size_t>(seqs.rows) * (c.D + c.R + 2 * c.N));
    device.kernels().selective_scan({.seqs = seqs,
                                     .D = c.D,
                                     .N = c.N,
                                     .R = c.R,
                                     .chunk = c.chunk,
                                     .norm_eps = c.norm_eps,
                                     .x_stride = in[0].stride,
                                     .params_stride = in[1].stride,
                                     .z_stride = in[2].stride,
                                     .x = in[0].data,
                                     .params = in[1].data,
                                     .z = c.gate ? in[2].data : nullptr,
                                     .dt_proj = {c.type, c.D, c.R, matrix.data()},
                                     .dt_bias = w[0],
                                     .A = w[1],
                                     .skip = w[2],
                                     .h = states[0],
                                     .scratch = scratch.data(),
                                     .y = y},
                                    *device.stream);
    EXPECT_TRUE(scratch.guards_intact());  // waits, too, while matrix and scratch are there
  };
  return op;
}

struct SsdSize {
  int H, P, N, G = 1, chunk = 4;
  float dt_min = 0, dt_max = std::numeric_limits<float>::infinity();
  float dt_mean = -2, dt_deviation = 2;
  bool gate = false, aligned = false;
  int every = 1;  // HeldRows::every
};

// The state with the rows that lie next to its base taken in, in fp64.
inline std::vector<float> ssd_taken_in(const SsdSize& c, std::vector<float> state) {
  const int rows = c.every - 1, values = c.H * c.P * c.N;
  const float* u = state.data() + values;
  const float* B = u + rows * c.H * c.P;
  const float* a = B + rows * c.G * c.N;
  const int count = std::bit_cast<int32_t>(state.back());
  for (int i = 0; i < values; ++i) {
    const int n = i % c.N, p = i / c.N % c.P, h = i / c.N / c.P;
    double sum = 0, exponent = 0;
    for (int j = count; j-- > 0;) {
      sum +=
          std::exp(exponent) * u[(j * c.H + h) * c.P + p] * B[(j * c.G + h * c.G / c.H) * c.N + n];
      exponent += a[h * rows + j];
    }
    state[i] = static_cast<float>(sum + std::exp(exponent) * state[i]);
  }
  state.back() = 0;
  return state;
}

// A row: x (H, P), B (G, N), C (G, N), dt (H), z (H, P). The weights: dt_bias (H), A (H), skip (H).
inline RecurrenceOp ssd_op(const SsdSize& c, std::mt19937_64& random) {
  RecurrenceOp op;
  op.name = "ssd H " + std::to_string(c.H) + " P " + std::to_string(c.P) + " N " +
            std::to_string(c.N) + " G " + std::to_string(c.G) + " chunk " +
            std::to_string(c.chunk) + " every " + std::to_string(c.every);
  op.in = {c.H * c.P + 2 * c.G * c.N, c.H, c.H * c.P};
  op.out = c.H * c.P;
  op.state = {c.H * c.P * c.N};
  if (c.every > 1) hold_rows(op, c.every, {{c.H * c.P}, {c.G * c.N}, {c.H, true, true}});
  if (c.every > 1) op.taken_in = [c](const auto& state) { return ssd_taken_in(c, state); };
  op.grid = c.chunk;
  op.keeps_bf16 = [](const Kernels& kernels) { return kernels.ssd.bf16_state; };
  op.aligned = c.aligned;
  op.rounded_columns = op.in[0];
  op.rounds = [c](const Kernels& kernels) {
    return kernels.ssd.rounds_in_tiles && fills_tiles(c.N, c.P, c.chunk, c.aligned);
  };
  op.tolerance = kSsmTolerance;
  op.weights = {normal_floats(random, c.H), random_decays(random, c.H), normal_floats(random, c.H)};
  op.inputs = [c](int L, std::mt19937_64& r) {
    return random_rows(
        {{c.H * c.P}, {2 * c.G * c.N}, {c.H, c.dt_mean, c.dt_deviation}, {c.H * c.P}}, L, r);
  };
  op.run = [c](KernelDevice& device, const Ragged& seqs, const std::vector<RowArray>& in,
               const std::vector<const float*>& w, const std::vector<StateData>& states, float* y) {
    const float* B = in[0].data + c.H * c.P;
    const HeldCount count(device, seqs, c.chunk, c.every, states);
    device.kernels().ssd({.seqs = seqs,
                          .H = c.H,
                          .P = c.P,
                          .N = c.N,
                          .G = c.G,
                          .chunk = c.chunk,
                          .dt_min = c.dt_min,
                          .dt_max = c.dt_max,
                          .xBC_stride = in[0].stride,
                          .dt_stride = in[1].stride,
                          .z_stride = in[2].stride,
                          .x = in[0].data,
                          .B = B,
                          .C = B + c.G * c.N,
                          .dt = in[1].data,
                          .z = c.gate ? in[2].data : nullptr,
                          .dt_bias = w[0],
                          .A = w[1],
                          .skip = w[2],
                          .h = states[0],
                          .y = y,
                          .held = count.held(),
                          .held_u = count.array(1),
                          .held_B = count.array(2),
                          .held_a = count.array(3)},
                         *device.stream);
    count.wait();
  };
  return op;
}

struct LinearRecurrenceSize {
  int D, chunk = 4;
};

// A row: c (D), x (D). No weights.
inline RecurrenceOp linear_recurrence_op(const LinearRecurrenceSize& c) {
  RecurrenceOp op;
  op.name = "linear_recurrence D " + std::to_string(c.D);
  op.in = {c.D, c.D};
  op.out = c.D;
  op.state = {c.D};
  op.grid = c.chunk;
  op.tolerance = kSsmTolerance;
  op.inputs = [c](int L, std::mt19937_64& r) { return random_rows({{c.D, 0, 0.7f}, {c.D}}, L, r); };
  op.run = [c](KernelDevice& device, const Ragged& seqs, const std::vector<RowArray>& in,
               const std::vector<const float*>&, const std::vector<StateData>& states, float* y) {
    device.kernels().linear_recurrence({.seqs = seqs,
                                        .D = c.D,
                                        .chunk = c.chunk,
                                        .c_stride = in[0].stride,
                                        .x_stride = in[1].stride,
                                        .c = in[0].data,
                                        .x = in[1].data,
                                        .state = states[0].f32(),
                                        .y = y},
                                       *device.stream);
  };
  return op;
}

}  // namespace recurve::testing
