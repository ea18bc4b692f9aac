#pragma once
#include <cstdint>

#include "kernels/ops/op.h"
#include "kernels/ops/ragged.h"

namespace recurve {

// Where each row stands in its session: row number t of a sequence is at the place its state has
// counted to, plus t; the count then moves on by the rows of the sequence.
struct PositionsArgs {
  Ragged seqs;
  int32_t* count;     // (slots) rows seen so far, read and written in place
  int32_t* position;  // (rows)
};

// Turns pairs of channels by an angle that grows with the position, the two halves of a head being
// the pairs: with p the position and a = p frequency[j],
//   x[j]        <- x[j] cos a - x[j + D/2] sin a
//   x[j + D/2]  <- x[j] sin a + x[j + D/2] cos a
// The angle is a product in double: p grows without end, and fp32 would lose it.
// With more floats from head to head than channels, the others of a head stay as they are.
// Source: Su et al. 2021 (RoFormer), eq. 34, in the order of channels of GPT-NeoX.
struct RotaryArgs {
  int rows;
  int H;
  int D;                    // channels of a head, even
  int stride;               // floats from a row of x to the next
  const int32_t* position;  // (rows)
  const float* frequency;   // (D / 2) radians a position
  float* x;                 // (rows, H, D), in place
  int head_stride = 0;      // floats from a head to the next; 0: D
};

struct PositionsKernel {
  static constexpr const char* kName = "positions";
  Op<PositionsArgs> positions;
  static constexpr auto kOp = &PositionsKernel::positions;
};

struct RotaryKernel {
  static constexpr const char* kName = "rotary";
  Op<RotaryArgs> rotary;
  static constexpr auto kOp = &RotaryKernel::rotary;
};

}  // namespace recurve
