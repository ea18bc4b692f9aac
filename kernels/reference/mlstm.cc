#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/chunks.h"
#include "kernels/reference/math.h"
#include "kernels/reference/table.h"

namespace recurve::reference {
namespace {

// One head of one sequence: its inputs from some row on, and its state.
struct Head {
  int DK;
  int DV;
  float gate_soft_cap;
  float eps;
  int stride;      // of q, k, v, i, f
  int h_stride;    // floats from a row of h to the next
  const float* q;  // (rows, DK)
  const float* k;  // (rows, DK)
  const float* v;  // (rows, DV)
  const float* i;  // (rows)
  const float* f;  // (rows)
  float* C;        // (DK, DV)
  float* n;        // (DK)
  float* m;        // scalar
  float* h;        // (rows, DV)
};

Head head_at(const MlstmArgs& a, int slot, int head, int64_t row, float* C) {
  const int64_t state = int64_t{slot} * a.H + head;
  Head s;
  s.DK = a.DK;
  s.DV = a.DV;
  s.gate_soft_cap = a.gate_soft_cap;
  s.eps = a.eps;
  s.stride = a.stride;
  s.h_stride = a.H * a.DV;
  s.q = a.q + row * a.stride + head * a.DK;
  s.k = a.k + row * a.stride + head * a.DK;
  s.v = a.v + row * a.stride + head * a.DV;
  s.i = a.i + row * a.stride + head;
  s.f = a.f + row * a.stride + head;
  s.C = C;
  s.n = a.n + state * a.DK;
  s.m = a.m + state;
  s.h = a.h + row * s.h_stride + head * a.DV;
  return s;
}

float gate(float x, float cap) { return cap > 0 ? soft_cap(x, cap) : x; }

float dot(int size, const float* a, const float* b) {
  float sum = 0;
  for (int j = 0; j < size; ++j) sum += a[j] * b[j];
  return sum;
}

// max(|qn|, exp(-m)) + eps
float denominator(float qn, float m, float eps) {
  return std::max(std::fabs(qn), std::exp(-m)) + eps;
}

void step(const Head& s) {
  const float i = gate(*s.i, s.gate_soft_cap);
  const float lf = log_sigmoid(gate(*s.f, s.gate_soft_cap));
  const float m = std::max(lf + *s.m, i);
  const float F = std::exp(lf + *s.m - m);
  const float I = std::exp(i - m);
  *s.m = m;

  std::fill(s.h, s.h + s.DV, 0.0f);
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.DK));
  float qn = 0;
  for (int a = 0; a < s.DK; ++a) {
    const float qs = s.q[a] * scale;
    s.n[a] = F * s.n[a] + I * s.k[a];
    qn += qs * s.n[a];
    float* C = s.C + int64_t{a} * s.DV;
    for (int d = 0; d < s.DV; ++d) {
      C[d] = F * C[d] + I * s.k[a] * s.v[d];
      s.h[d] += qs * C[d];
    }
  }
  const float den = denominator(qn, m, s.eps);
  for (int d = 0; d < s.DV; ++d) s.h[d] /= den;
}

// Output t of a chunk, from the state before the chunk and its tokens up to t. b, i: (L)
void chunk_output(const Head& s, int t, const std::vector<float>& b, const std::vector<float>& i) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.DK));
  const float* q = s.q + int64_t{t} * s.stride;
  float* h = s.h + int64_t{t} * s.h_stride;
  float m = b[t] + *s.m;
  for (int j = 0; j <= t; ++j) m = std::max(m, b[t] - b[j] + i[j]);

  const float e = std::exp(b[t] + *s.m - m);
  float qn = e * scale * dot(s.DK, q, s.n);
  std::fill(h, h + s.DV, 0.0f);
  for (int a = 0; a < s.DK; ++a) {
    const float eqs = e * (q[a] * scale);
    for (int d = 0; d < s.DV; ++d) h[d] += eqs * s.C[int64_t{a} * s.DV + d];
  }
  for (int j = 0; j <= t; ++j) {
    const float* v = s.v + int64_t{j} * s.stride;
    const float S =
        scale * dot(s.DK, q, s.k + int64_t{j} * s.stride) * std::exp(b[t] - b[j] + i[j] - m);
    qn += S;
    for (int d = 0; d < s.DV; ++d) h[d] += S * v[d];
  }
  const float den = denominator(qn, m, s.eps);
  for (int d = 0; d < s.DV; ++d) h[d] /= den;
}

// The state after a chunk of L tokens. b, i: (L)
void chunk_state(const Head& s, int L, const std::vector<float>& b, const std::vector<float>& i) {
  const float g = b[L - 1];
  float m = g + *s.m;
  for (int j = 0; j < L; ++j) m = std::max(m, g - b[j] + i[j]);

  const float F = std::exp(g + *s.m - m);
  for (int a = 0; a < s.DK; ++a) {
    s.n[a] *= F;
    for (int d = 0; d < s.DV; ++d) s.C[int64_t{a} * s.DV + d] *= F;
  }
  for (int j = 0; j < L; ++j) {
    const float I = std::exp(g - b[j] + i[j] - m);
    const float* k = s.k + int64_t{j} * s.stride;
    const float* v = s.v + int64_t{j} * s.stride;
    for (int a = 0; a < s.DK; ++a) {
      s.n[a] += I * k[a];
      for (int d = 0; d < s.DV; ++d) s.C[int64_t{a} * s.DV + d] += I * k[a] * v[d];
    }
  }
  *s.m = m;
}

void chunk(const Head& s, int L) {
  std::vector<float> b(L), i(L);
  float sum = 0;
  for (int t = 0; t < L; ++t) {
    sum += log_sigmoid(gate(s.f[int64_t{t} * s.stride], s.gate_soft_cap));
    b[t] = sum;
    i[t] = gate(s.i[int64_t{t} * s.stride], s.gate_soft_cap);
  }
  for (int t = 0; t < L; ++t) chunk_output(s, t, b, i);
  chunk_state(s, L, b, i);
}

}  // namespace

void run(const MlstmArgs& args, Stream& stream) {
  const int64_t matrix = int64_t{args.DK} * args.DV;
  for_each_chunk(args.seqs, args.C, args.H, matrix, args.chunk,
                 [&](int slot, int head, int row, int L, float* C) {
                   const Head s = head_at(args, slot, head, row, C);
                   if (L == 1) {
                     step(s);
                   } else {
                     chunk(s, L);
                   }
                 });
  if (args.head_norm != nullptr) run(head_norm_gate_of(args), stream);
}

}  // namespace recurve::reference
