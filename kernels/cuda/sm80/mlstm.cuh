#pragma once
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/chunks.cuh"
#include "kernels/ops/mlstm.h"

// What the mLSTM kernels share. Numbers that more than one kernel computes must come out with the
// same bits in each, so their products and sums are spelled out.
namespace recurve::cuda::sm80 {

// One head of one sequence: its inputs from some row on.
struct MlstmHead {
  const float* q;  // (rows, DK)
  const float* k;  // (rows, DK)
  const float* v;  // (rows, DV)
  const float* i;  // (rows)
  const float* f;  // (rows)
  float* h;        // (rows, DV)
};

__device__ inline MlstmHead head_at(const MlstmArgs& a, int head, int64_t row) {
  const int64_t inputs = row * a.stride;
  return {a.q + inputs + head * a.DK, a.k + inputs + head * a.DK, a.v + inputs + head * a.DV,
          a.i + inputs + head,        a.f + inputs + head,        a.h + (row * a.H + head) * a.DV};
}

__device__ inline float gate(float x, float cap) { return cap > 0 ? soft_cap(x, cap) : x; }

// The step's scalars: the new m, and the weights of the old state and of the new token.
struct StepGates {
  float m, F, I;
};
__device__ inline StepGates step_gates(const MlstmArgs& a, float i, float f, float m) {
  i = gate(i, a.gate_soft_cap);
  const float lf = log_sigmoid(gate(f, a.gate_soft_cap));
  const float next = max_of(lf + m, i);
  return {next, expf(lf + m - next), expf(i - next)};
}

}  // namespace recurve::cuda::sm80
