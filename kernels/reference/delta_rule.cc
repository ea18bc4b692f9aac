#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/chunks.h"
#include "kernels/reference/table.h"

namespace recurve::reference {
namespace {

// A chunk of one head of one sequence, and its state.
struct Chunk {
  const DeltaRuleArgs& args;
  int64_t row;  // the first
  int head;     // of values
  int L;
  float* S;  // (DK, DV)

  int64_t key_at() const { return int64_t{head / (args.H / args.HK)} * args.DK; }
  float q(int t, int a) const {
    return args.scale * args.q[(row + t) * args.q_stride + key_at() + a];
  }
  float k(int t, int a) const { return args.k[(row + t) * args.k_stride + key_at() + a]; }
  const float* v(int t) const {
    return args.v + (row + t) * args.v_stride + int64_t{head} * args.DV;
  }
  float beta(int t) const { return args.beta[(row + t) * args.beta_stride + head]; }
  // Log decay of channel a at row t.
  float g(int t, int a) const {
    if (args.decay == DeltaDecay::kNone) return 0;
    const float* of_row = args.g + (row + t) * args.g_stride;
    return args.decay == DeltaDecay::kToken ? of_row[head] : of_row[int64_t{head} * args.DK + a];
  }
  float* o(int t) const { return args.o + ((row + t) * args.H + head) * args.DV; }
};

void step(const Chunk& s) {
  const int DK = s.args.DK, DV = s.args.DV;
  std::vector<float> u(DV);
  for (int a = 0; a < DK; ++a) {
    const float decay = std::exp(s.g(0, a));
    float* S = s.S + int64_t{a} * DV;
    for (int d = 0; d < DV; ++d) {
      S[d] *= decay;
      u[d] += s.k(0, a) * S[d];
    }
  }
  for (int d = 0; d < DV; ++d) u[d] = s.beta(0) * (s.v(0)[d] - u[d]);
  std::fill_n(s.o(0), DV, 0.0f);
  for (int a = 0; a < DK; ++a) {
    float* S = s.S + int64_t{a} * DV;
    for (int d = 0; d < DV; ++d) {
      S[d] += s.k(0, a) * u[d];
      s.o(0)[d] += s.q(0, a) * S[d];
    }
  }
}

// Adds to `to` (DV) what the vector x of row t reads, with the decays between: of the rows j < end,
// whose vectors of values are U, and of the state before the chunk. G: scratch (DK), the decays
// from row j on to t. They grow backwards, so that none is a difference of large ones.
template <typename Vector>
void read(const Chunk& s, const Vector& x, int t, int end, const std::vector<float>& U,
          std::vector<float>& G, float* to) {
  const int DK = s.args.DK, DV = s.args.DV;
  std::fill(G.begin(), G.end(), 0.0f);
  for (int j = t; j >= 0; --j) {
    if (j < end) {
      float product = 0;
      for (int a = 0; a < DK; ++a) product += x(a) * std::exp(G[a]) * s.k(j, a);
      for (int d = 0; d < DV; ++d) to[d] += product * U[int64_t{j} * DV + d];
    }
    for (int a = 0; a < DK; ++a) G[a] += s.g(j, a);
  }
  for (int a = 0; a < DK; ++a) {
    const float faded = x(a) * std::exp(G[a]);
    for (int d = 0; d < DV; ++d) to[d] += faded * s.S[int64_t{a} * DV + d];
  }
}

// The state after the chunk.
void update(const Chunk& s, const std::vector<float>& U) {
  const int DV = s.args.DV;
  std::vector<float> sum(DV);
  for (int a = 0; a < s.args.DK; ++a) {
    float G = 0;
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (int j = s.L - 1; j >= 0; --j) {
      const float k = s.k(j, a) * std::exp(G);
      for (int d = 0; d < DV; ++d) sum[d] += k * U[int64_t{j} * DV + d];
      G += s.g(j, a);
    }
    float* S = s.S + int64_t{a} * DV;
    for (int d = 0; d < DV; ++d) S[d] = std::exp(G) * S[d] + sum[d];
  }
}

// Row t of U from the rows before it: forward substitution.
void chunk(const Chunk& s) {
  const int DV = s.args.DV;
  std::vector<float> U(static_cast<size_t>(s.L) * DV), G(s.args.DK);
  for (int t = 0; t < s.L; ++t) {
    float* u = &U[static_cast<size_t>(t) * DV];
    read(s, [&](int a) { return s.k(t, a); }, t, t, U, G, u);
    for (int d = 0; d < DV; ++d) u[d] = s.beta(t) * (s.v(t)[d] - u[d]);
  }
  for (int t = 0; t < s.L; ++t) {
    std::fill_n(s.o(t), DV, 0.0f);
    read(s, [&](int a) { return s.q(t, a); }, t, t + 1, U, G, s.o(t));
  }
  update(s, U);
}

}  // namespace

void run(const DeltaRuleArgs& args, Stream&) {
  const int64_t matrix = int64_t{args.DK} * args.DV;
  for_each_chunk(args.seqs, args.S, args.H, matrix, args.chunk,
                 [&](int, int head, int row, int L, float* S) {
                   const Chunk s{args, row, head, L, S};
                   if (L == 1) {
                     step(s);
                   } else {
                     chunk(s);
                   }
                 });
}

}  // namespace recurve::reference
