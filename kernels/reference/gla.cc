#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/chunks.h"
#include "kernels/reference/table.h"

namespace recurve::reference {
namespace {

// One head of one sequence: its inputs from some row on, and its state.
struct Head {
  const GlaArgs& args;
  const float* q;  // (rows, DK)
  const float* k;  // (rows, DK)
  const float* v;  // (rows, DV)
  const float* g;  // of the first row: (1) or, kChannel, (DK); null: kNone
  const float* i;  // (rows) or null
  float* S;        // (DK, DV)
  float* z;        // (DK) or null
  float* o;        // (rows, DV)

  int64_t g_step() const { return args.decay == GlaDecay::kHead ? 0 : args.g_stride; }
  // Log decay of channel a at row t.
  float decay(int t, int a) const {
    if (g == nullptr) return 0;
    return g[t * g_step() + (args.decay == GlaDecay::kChannel ? a : 0)];
  }
  // k with its weight.
  float key(int t, int a) const {
    const float weight = i == nullptr ? 1 : std::exp(i[int64_t{t} * args.g_stride]);
    return weight * k[int64_t{t} * args.k_stride + a];
  }
  float query(int t, int a) const { return args.scale * q[int64_t{t} * args.q_stride + a]; }
  const float* value(int t) const { return v + int64_t{t} * args.v_stride; }
  float* out(int t) const { return o + int64_t{t} * args.H * args.DV; }
};

Head head_at(const GlaArgs& a, int slot, int head, int64_t row, float* S) {
  const int64_t state = int64_t{slot} * a.H + head;
  const int64_t g_head = a.decay == GlaDecay::kChannel ? int64_t{head} * a.DK : head;
  const int64_t g_row = a.decay == GlaDecay::kHead ? 0 : row * a.g_stride;
  return {.args = a,
          .q = a.q + row * a.q_stride + int64_t{head} * a.DK,
          .k = a.k + row * a.k_stride + int64_t{head} * a.DK,
          .v = a.v + row * a.v_stride + int64_t{head} * a.DV,
          .g = a.decay == GlaDecay::kNone ? nullptr : a.g + g_row + g_head,
          .i = a.i == nullptr ? nullptr : a.i + row * a.g_stride + head,
          .S = S,
          .z = a.z == nullptr ? nullptr : a.z + state * a.DK,
          .o = a.o + (row * a.H + head) * a.DV};
}

void divide(const Head& s, int t, float normaliser) {
  if (s.z == nullptr) return;
  if (s.args.bounded) normaliser = std::max(std::fabs(normaliser), 1.0f);
  for (int d = 0; d < s.args.DV; ++d) s.out(t)[d] /= normaliser + s.args.eps;
}

void step(const Head& s) {
  const int DV = s.args.DV;
  std::fill(s.o, s.o + DV, 0.0f);
  float normaliser = 0;
  for (int a = 0; a < s.args.DK; ++a) {
    const float F = std::exp(s.decay(0, a)), qs = s.query(0, a), k = s.key(0, a);
    float* S = s.S + int64_t{a} * DV;
    for (int d = 0; d < DV; ++d) {
      S[d] = F * S[d] + k * s.v[d];
      s.o[d] += qs * S[d];
    }
    if (s.z == nullptr) continue;
    s.z[a] = F * s.z[a] + k;
    normaliser += qs * s.z[a];
  }
  divide(s, 0, normaliser);
}

// Output t of a chunk, from the state before the chunk and its rows up to t. The sums of decays
// grow backwards from t, so that none is a difference of large ones. G: scratch, (DK)
void chunk_output(const Head& s, int t, std::vector<float>& G) {
  const int DK = s.args.DK, DV = s.args.DV;
  float* o = s.out(t);
  float normaliser = 0;
  std::fill(o, o + DV, 0.0f);
  std::fill(G.begin(), G.end(), 0.0f);
  for (int j = t; j >= 0; --j) {
    float P = 0;
    for (int a = 0; a < DK; ++a) {
      P += s.query(t, a) * s.key(j, a) * std::exp(G[a]);
      G[a] += s.decay(j, a);
    }
    normaliser += P;
    for (int d = 0; d < DV; ++d) o[d] += P * s.value(j)[d];
  }
  for (int a = 0; a < DK; ++a) {
    const float qs = s.query(t, a) * std::exp(G[a]);
    if (s.z != nullptr) normaliser += qs * s.z[a];
    for (int d = 0; d < DV; ++d) o[d] += qs * s.S[int64_t{a} * DV + d];
  }
  divide(s, t, normaliser);
}

// The state after a chunk of L rows.
void chunk_state(const Head& s, int L) {
  const int DV = s.args.DV;
  std::vector<float> sum(DV);
  for (int a = 0; a < s.args.DK; ++a) {
    float G = 0, z_sum = 0;
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (int j = L - 1; j >= 0; --j) {
      const float k = s.key(j, a) * std::exp(G);
      for (int d = 0; d < DV; ++d) sum[d] += k * s.value(j)[d];
      z_sum += k;
      G += s.decay(j, a);
    }
    float* S = s.S + int64_t{a} * DV;
    for (int d = 0; d < DV; ++d) S[d] = std::exp(G) * S[d] + sum[d];
    if (s.z != nullptr) s.z[a] = std::exp(G) * s.z[a] + z_sum;
  }
}

void chunk(const Head& s, int L) {
  std::vector<float> G(s.args.DK);
  for (int t = 0; t < L; ++t) chunk_output(s, t, G);
  chunk_state(s, L);
}

}  // namespace

void run(const GlaArgs& args, Stream&) {
  const int64_t matrix = int64_t{args.DK} * args.DV;
  for_each_chunk(args.seqs, args.S, args.H, matrix, args.chunk,
                 [&](int slot, int head, int row, int L, float* S) {
                   const Head s = head_at(args, slot, head, row, S);
                   if (L == 1) {
                     step(s);
                   } else {
                     chunk(s, L);
                   }
                 });
}

}  // namespace recurve::reference
