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

// F x + I k
__device__ inline float advance(float F, float x, float Ik) { return __fmaf_rn(F, x, Ik); }

// max(|qn|, exp(-m)) + eps
__device__ inline float denominator(float qn, float m, float eps) {
  return max_of(fabsf(qn), expf(-m)) + eps;
}

// b and i of a chunk's rows, in shared memory: (L) each. To be called by the whole block.
template <int kThreads>
__device__ void chunk_gates(const MlstmArgs& a, const MlstmHead& s, int L, float* b, float* i) {
  for (int t = threadIdx.x; t < L; t += kThreads) {
    b[t] = log_sigmoid(gate(s.f[static_cast<int64_t>(t) * a.stride], a.gate_soft_cap));
    i[t] = gate(s.i[static_cast<int64_t>(t) * a.stride], a.gate_soft_cap);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int t = 1; t < L; ++t) b[t] += b[t - 1];
  }
  __syncthreads();
}

// The stabiliser at t: of the state's weight and those of the tokens up to `last`.
__device__ inline float chunk_m(const float* b, const float* i, int t, int last, float m) {
  float tokens = b[t] - b[0] + i[0];
  for (int j = 1; j <= last; ++j) tokens = fmaxf(tokens, b[t] - b[j] + i[j]);
  return max_of(b[t] + m, tokens);
}

// n after a chunk, one value: F n + sum_j weight_j k_j. k: this value's column, of L rows.
__device__ inline float chunk_n(float F, float n, const float* weight, const float* k, int stride,
                                int L) {
  n = __fmul_rn(F, n);
  for (int j = 0; j < L; ++j) {
    n = __fmaf_rn(weight[j], k[static_cast<int64_t>(j) * stride], n);
  }
  return n;
}

}  // namespace recurve::cuda::sm80
