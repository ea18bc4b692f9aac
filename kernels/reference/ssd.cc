#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/math.h"
#include "kernels/reference/open_state.h"
#include "kernels/reference/table.h"

namespace recurve::reference {
namespace {

// One head of one sequence: its inputs from some row on, and its state.
struct Head {
  int P;
  int N;
  int stride;  // of x, B, C
  int y_stride;
  float skip;
  const float* x;  // (rows, P)
  const float* B;  // (rows, N)
  const float* C;  // (rows, N)
  float* h;        // (P, N)
  float* y;        // (rows, P)
};

// What a row contributes in addition to x, B and C.
struct Step {
  float dt;
  float a;  // log of the decay, never positive
};

Head head_at(const SsdArgs& a, int head, int64_t row, float* h) {
  const int group = head / (a.H / a.G);
  return {.P = a.P,
          .N = a.N,
          .stride = a.xBC_stride,
          .y_stride = a.H * a.P,
          .skip = a.skip[head],
          .x = a.x + row * a.xBC_stride + head * a.P,
          .B = a.B + row * a.xBC_stride + group * a.N,
          .C = a.C + row * a.xBC_stride + group * a.N,
          .h = h,
          .y = a.y + (row * a.H + head) * a.P};
}

Step step_of(const SsdArgs& a, int head, int64_t row) {
  const float dt = softplus(a.dt[row * a.dt_stride + head] + a.dt_bias[head]);
  const float clamped = std::fmin(std::fmax(dt, a.dt_min), a.dt_max);
  // fmin and fmax would hide a NaN.
  const float kept = std::isnan(dt) ? dt : clamped;
  return {kept, kept * a.A[head]};
}

float dot(int size, const float* a, const float* b) {
  float sum = 0;
  for (int j = 0; j < size; ++j) sum += a[j] * b[j];
  return sum;
}

void step(const Head& s, Step t) {
  const float decay = std::exp(t.a);
  for (int p = 0; p < s.P; ++p) {
    float* h = s.h + int64_t{p} * s.N;
    float y = 0;
    for (int n = 0; n < s.N; ++n) {
      h[n] = decay * h[n] + t.dt * s.x[p] * s.B[n];
      y += s.C[n] * h[n];
    }
    s.y[p] = y + s.skip * s.x[p];
  }
}

// Output t of a chunk, from the state before the chunk and its rows up to t.
void chunk_output(const Head& s, int t, const std::vector<Step>& steps) {
  const float* C = s.C + int64_t{t} * s.stride;
  float* y = s.y + int64_t{t} * s.y_stride;
  std::fill(y, y + s.P, 0.0f);
  float S = 0;  // S_tj, from j = t backwards; in the end s_t
  for (int j = t; j >= 0; --j) {
    const float* x = s.x + int64_t{j} * s.stride;
    const float weight = dot(s.N, C, s.B + int64_t{j} * s.stride) * std::exp(S) * steps[j].dt;
    for (int p = 0; p < s.P; ++p) y[p] += weight * x[p];
    S += steps[j].a;
  }
  const float decay = std::exp(S);
  const float* x = s.x + int64_t{t} * s.stride;
  for (int p = 0; p < s.P; ++p) {
    y[p] += decay * dot(s.N, C, s.h + int64_t{p} * s.N) + s.skip * x[p];
  }
}

// The state after the rows of a chunk.
void chunk_state(const Head& s, const std::vector<Step>& steps) {
  float sum = 0;
  for (const Step& step : steps) sum += step.a;
  const float decay = std::exp(sum);
  for (int64_t j = 0; j < int64_t{s.P} * s.N; ++j) s.h[j] *= decay;
  float S = 0;  // S_Lj, from j = L backwards
  for (int j = static_cast<int>(steps.size()) - 1; j >= 0; --j) {
    const float* x = s.x + int64_t{j} * s.stride;
    const float* B = s.B + int64_t{j} * s.stride;
    const float weight = std::exp(S) * steps[j].dt;
    for (int p = 0; p < s.P; ++p) {
      for (int n = 0; n < s.N; ++n) s.h[int64_t{p} * s.N + n] += weight * x[p] * B[n];
    }
    S += steps[j].a;
  }
}

// Rows [row, end) of a head.
void gate(const SsdArgs& a, int head, int row, int end) {
  for (int64_t t = row; t < end; ++t) {
    const float* z = a.z + t * a.z_stride + head * a.P;
    float* y = a.y + (t * a.H + head) * a.P;
    for (int p = 0; p < a.P; ++p) y[p] *= silu(z[p]);
  }
}

}  // namespace

void run(const SsdArgs& args, Stream&) {
  const int64_t matrix = int64_t{args.P} * args.N;
  std::vector<float> copy(OpenState::copy_floats(args.h, matrix));
  for (int seq = 0; seq < args.seqs.num_seqs; ++seq) {
    const int end = args.seqs.begin[seq + 1];
    for (int head = 0; head < args.H; ++head) {
      const int64_t state = int64_t{args.seqs.slot[seq]} * args.H + head;
      OpenState h(args.h, state * matrix, matrix, copy.data());
      for (int row = args.seqs.begin[seq]; row < end;) {
        const int L = std::min(args.chunk, end - row);
        const Head s = head_at(args, head, row, h.values());
        std::vector<Step> steps;
        for (int t = 0; t < L; ++t) steps.push_back(step_of(args, head, row + t));
        row += L;
        if (L == 1) {
          step(s, steps[0]);
        } else {
          for (int t = 0; t < L; ++t) chunk_output(s, t, steps);
          chunk_state(s, steps);
        }
        h.end_chunk();
      }
      if (args.z != nullptr) gate(args, head, args.seqs.begin[seq], end);
    }
  }
}

}  // namespace recurve::reference
