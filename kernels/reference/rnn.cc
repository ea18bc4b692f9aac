#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/math.h"
#include "kernels/reference/table.h"

namespace recurve::reference {
namespace {

// One channel: what its gates get from the input and from the state, and its state.
struct Channel {
  const float* x;  // (gates)
  const float* s;  // (gates)
  float* h;
  float* c;
  float* n;
  float* m;
  float u(int gate) const { return x[gate] + s[gate]; }
};

float gru_mix(const Channel& at, float candidate) {
  const float z = sigmoid(at.u(1));
  return (1 - z) * std::tanh(at.x[2] + sigmoid(at.u(0)) * candidate) + z * *at.h;
}

void lstm(const Channel& at) {
  *at.c = sigmoid(at.u(1)) * *at.c + sigmoid(at.u(0)) * std::tanh(at.u(2));
  *at.h = sigmoid(at.u(3)) * std::tanh(*at.c);
}

// NaN in a gate stays: std::min and std::max give their first argument where they cannot compare.
void slstm(const Channel& at, float n_min) {
  const float i = at.u(0), l = log_sigmoid(at.u(1)) + *at.m;
  const float m = *at.n == 0 ? i : std::max(l, i);
  const float I = std::min(std::exp(i - m), 1.0f), F = std::min(std::exp(l - m), 1.0f);
  *at.m = m;
  *at.c = F * *at.c + I * std::tanh(at.u(2));
  *at.n = std::max(F * *at.n + I, n_min);
  *at.h = sigmoid(at.u(3)) * *at.c / *at.n;
}

void advance(const RnnArgs& args, const Channel& at) {
  switch (args.cell) {
    case RnnCell::kElman:
      *at.h = std::tanh(at.u(0));
      return;
    case RnnCell::kLstm:
      return lstm(at);
    case RnnCell::kGru:
      *at.h = gru_mix(at, at.s[2]);
      return;
    case RnnCell::kFlashGru:
      *at.h = gru_mix(at, std::tanh(at.s[2]));
      return;
    case RnnCell::kSlstm:
      return slstm(at, args.n_min);
  }
}

// One row of one head. s: scratch, (DH, gates)
void step(const RnnArgs& args, int64_t row, int64_t slot, int64_t head, std::vector<float>& s) {
  const int64_t H = args.H, DH = args.DH, gates = gates_of(args.cell);
  const int64_t state = (slot * H + head) * DH;
  for (int64_t gate = 0; gate < gates; ++gate) {
    for (int64_t d = 0; d < DH; ++d) {
      const int64_t R_row = (head * gates + gate) * DH + d;
      float sum = args.b == nullptr ? 0 : args.b[(gate * H + head) * DH + d];
      for (int64_t k = 0; k < DH; ++k) sum += args.h[state + k] * weight_at(args.R, R_row * DH + k);
      s[static_cast<size_t>(d * gates + gate)] = sum;
    }
  }
  const auto at = [&](float* array, int64_t d) {
    return array == nullptr ? nullptr : array + state + d;
  };
  for (int64_t d = 0; d < DH; ++d) {
    float x[4];
    for (int64_t gate = 0; gate < gates; ++gate) {
      x[gate] = args.x[row * args.x_stride + (gate * H + head) * DH + d];
    }
    advance(args, {x, &s[static_cast<size_t>(d * gates)], at(args.h, d), at(args.c, d),
                   at(args.n, d), at(args.m, d)});
    args.y[(row * H + head) * DH + d] = args.h[state + d];
  }
}

}  // namespace

void run(const RnnArgs& args, Stream&) {
  std::vector<float> s(static_cast<size_t>(args.DH) * gates_of(args.cell));
  for (int seq = 0; seq < args.seqs.num_seqs; ++seq) {
    for (int head = 0; head < args.H; ++head) {
      for (int row = args.seqs.begin[seq]; row < args.seqs.begin[seq + 1]; ++row) {
        step(args, row, args.seqs.slot[seq], head, s);
      }
    }
  }
}

}  // namespace recurve::reference
