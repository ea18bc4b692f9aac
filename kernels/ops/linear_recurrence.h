#pragma once
#include "kernels/ops/op.h"
#include "kernels/ops/ragged.h"

namespace recurve {

// y_t = c_t y_{t-1} + x_t for D independent channels, y before the first row being the state, which
// is left holding the last row. The primitive that Mamba's unfused form and other diagonal
// recurrences rest on. No family here calls it; it stands in the table, with tests and a row of
// `recurve-bench kernel`, because Mamba's paper reports its time next to the fused form. Source:
// Blelloch 1990, sec. 1.4, as a scan of the pairs (c, x) with (c, x) o (c', x') = (c c', c' x +
// x').
//
// The rows of a sequence are cut into chunks of `chunk` from its first row on; inside a chunk an
// implementation may combine in any order. So a sequence gives the same bits however it is split
// between calls, as long as every call but the last brings a multiple of `chunk` rows.
struct LinearRecurrenceArgs {
  Ragged seqs;
  int D;           // channels
  int chunk;       // rows; at least 1
  int c_stride;    // floats from a row of c to the next
  int x_stride;    // floats from a row of x to the next
  const float* c;  // (rows, D) coefficients
  const float* x;  // (rows, D)
  float* state;    // (slots, D) read and written in place
  float* y;        // (rows, D), dense; may be x, if x is dense
};

struct LinearRecurrenceKernel {
  static constexpr const char* kName = "linear_recurrence";
  Op<LinearRecurrenceArgs> linear_recurrence;
  static constexpr auto kOp = &LinearRecurrenceKernel::linear_recurrence;
};

}  // namespace recurve
