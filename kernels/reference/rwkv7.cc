#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/chunks.h"
#include "kernels/reference/table.h"

namespace recurve::reference {
namespace {

// A chunk of one head of one sequence, and its state.
struct Chunk {
  const Rwkv7Args& args;
  int64_t row;  // the first
  int head;
  int L;
  float* S;  // (N, N)

  int64_t at(int t, int c) const { return (row + t) * args.stride + head * args.N + c; }
  float r(int t, int c) const { return args.r[at(t, c)]; }
  float lw(int t, int c) const { return args.lw[at(t, c)]; }
  float k(int t, int c) const { return args.k[at(t, c)]; }
  float a(int t, int c) const { return -args.kk[at(t, c)]; }
  float b(int t, int c) const { return args.kk[at(t, c)] * args.alpha[at(t, c)]; }
  const float* v(int t) const { return args.v + at(t, 0); }
  float* o(int t) const { return args.o + ((row + t) * args.H + head) * args.N; }
};

void step(const Chunk& s) {
  const int N = s.args.N;
  std::vector<float> u(N);
  for (int c = 0; c < N; ++c) {
    for (int d = 0; d < N; ++d) u[d] += s.a(0, c) * s.S[c * N + d];
  }
  std::fill_n(s.o(0), N, 0.0f);
  for (int c = 0; c < N; ++c) {
    const float decay = std::exp(s.lw(0, c));
    for (int d = 0; d < N; ++d) {
      float& S = s.S[c * N + d];
      S = decay * S + s.b(0, c) * u[d] + s.k(0, c) * s.v(0)[d];
      s.o(0)[d] += s.r(0, c) * S;
    }
  }
}

// Adds to `to` (N) what row t's vector x reads, with the decays between: of the rows j < end, whose
// vectors of values are u and v, and of the state. G: scratch (N), the decays from row end - 1 on
// to x: 0 where x is r, which reads the state after its row's decay and addition, and where it is
// a, which reads before them. They grow backwards, so that none is a difference of large ones.
template <typename Vector>
void read(const Chunk& s, const Vector& x, int end, const std::vector<float>& U,
          std::vector<float>& G, float* to) {
  const int N = s.args.N;
  std::fill(G.begin(), G.end(), 0.0f);
  for (int j = end - 1; j >= 0; --j) {
    float of_b = 0, of_k = 0;
    for (int c = 0; c < N; ++c) {
      const float faded = x(c) * std::exp(G[c]);
      of_b += faded * s.b(j, c);
      of_k += faded * s.k(j, c);
      G[c] += s.lw(j, c);
    }
    for (int d = 0; d < N; ++d) to[d] += of_b * U[int64_t{j} * N + d] + of_k * s.v(j)[d];
  }
  for (int c = 0; c < N; ++c) {
    const float faded = x(c) * std::exp(G[c]);
    for (int d = 0; d < N; ++d) to[d] += faded * s.S[c * N + d];
  }
}

// The state after the chunk.
void update(const Chunk& s, const std::vector<float>& U) {
  const int N = s.args.N;
  std::vector<float> sum(N);
  for (int c = 0; c < N; ++c) {
    float G = 0;
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (int j = s.L - 1; j >= 0; --j) {
      const float b = s.b(j, c) * std::exp(G), k = s.k(j, c) * std::exp(G);
      for (int d = 0; d < N; ++d) sum[d] += b * U[int64_t{j} * N + d] + k * s.v(j)[d];
      G += s.lw(j, c);
    }
    float* S = s.S + c * N;
    for (int d = 0; d < N; ++d) S[d] = std::exp(G) * S[d] + sum[d];
  }
}

// Row t of U from the rows before it: forward substitution.
void chunk(const Chunk& s) {
  const int N = s.args.N;
  std::vector<float> U(static_cast<size_t>(s.L) * N), G(N);
  for (int t = 0; t < s.L; ++t) {
    read(s, [&](int c) { return s.a(t, c); }, t, U, G, &U[static_cast<size_t>(t) * N]);
  }
  for (int t = 0; t < s.L; ++t) {
    std::fill_n(s.o(t), N, 0.0f);
    read(s, [&](int c) { return s.r(t, c); }, t + 1, U, G, s.o(t));
  }
  update(s, U);
}

}  // namespace

void run(const Rwkv7Args& args, Stream&) {
  const int64_t matrix = int64_t{args.N} * args.N;
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
