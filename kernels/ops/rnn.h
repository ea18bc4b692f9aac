#pragma once
#include "kernels/ops/op.h"
#include "kernels/ops/ragged.h"
#include "kernels/tensor.h"

namespace recurve {

enum class RnnCell { kElman, kLstm, kGru, kFlashGru, kSlstm };

constexpr int gates_of(RnnCell cell) {
  switch (cell) {
    case RnnCell::kElman:
      return 1;
    case RnnCell::kGru:
    case RnnCell::kFlashGru:
      return 3;
    case RnnCell::kLstm:
    case RnnCell::kSlstm:
      return 4;
  }
  return 0;
}

// Recurrent cells whose gates see the output before them, so that rows follow one another and no
// chunk form exists: a sequence gives the same bits however it is cut between calls. With heads of
// DH channels, each of which sees its own head only, for gate j of a row
//   s_j = R_j h + b_j        u_j = x_j + s_j
// where x_j, made of the layer's input, is computed beforehand for all rows at once. Then, value by
// value, with sig the logistic function:
//   kElman     h' = tanh(u_0)
//   kLstm      gates i, f, z, o:  c' = sig(f) c + sig(i) tanh(z),  h' = sig(o) tanh(c')
//   kGru       gates r, z, n:     h' = (1 - sig(z)) tanh(x_n + sig(r) s_n) + sig(z) h
//   kFlashGru  gates r, z, n:     h' = (1 - sig(z)) tanh(x_n + sig(r) tanh(s_n)) + sig(z) h
//   kSlstm     gates i, f, z, o:  l = logsig(f) + m,  m' = n == 0 ? i : max(i, l)
//              I = min(1, exp(i - m')),  F = min(1, exp(l - m'))
//              c' = F c + I tanh(z),  n' = max(F n + I, n_min),  h' = sig(o) c' / n'
// Sources: Elman 1990; Hochreiter and Schmidhuber 1997 with forget gates, and Cho et al. 2014, as
// in PyTorch's nn.LSTM and nn.GRU; Poeppel et al. 2024 (FlashRNN), eq. 8 to 16 (kFlashGru, whose
// gate g is s_n here); Beck et al. 2024 (xLSTM), eq. 9 to 17, and the NX-AI/xlstm package for the
// rule on n == 0, which is decided for each value by itself.
struct RnnArgs {
  Ragged seqs;
  RnnCell cell;
  int H;           // heads
  int DH;          // channels of a head
  float n_min;     // kSlstm: 0, or 1 in the FlashRNN package
  int x_stride;    // floats from a row of x to the next
  const float* x;  // (rows, gates, H, DH), bias of the input included
  Matrix R;        // (H gates DH, DH): for each head and gate the matrix of h
  const float* b;  // (gates, H, DH) or null: zeros
  float* h;        // (slots, H, DH) state, read and written in place
  float* c;        // (slots, H, DH) state of kLstm and kSlstm, else null
  float* n;        // (slots, H, DH) normaliser state of kSlstm, else null
  float* m;        // (slots, H, DH) stabiliser state of kSlstm, else null
  float* y;        // (rows, H, DH): h' of each row, dense; does not overlap x
};

struct RnnKernel {
  static constexpr const char* kName = "rnn";
  Op<RnnArgs> rnn;
  static constexpr auto kOp = &RnnKernel::rnn;
};

}  // namespace recurve
