#pragma once
#include <cstdint>
#include <span>

#include "kernels/ops/sample_math.h"

namespace recurve::reference {

// Passes over one row of logits. All of them give the same bits whatever the vector width they run
// with. That is also why the exponential is our own: the C library's picks a variant by the machine
// it runs on.

struct RowMax {
  float value;  // -infinity for an empty row
  int32_t id;   // the lowest id that has it; -1 for an empty row
  bool nan;     // the row has one somewhere; value and id then mean nothing
};

RowMax row_max(std::span<const float> row);

// The sum of the weights of the row's logits; max is the row's and finite. weights: null, or
// (row.size()) and gets them.
uint64_t weigh(std::span<const float> row, float max, double inverse_temperature,
               uint64_t* weights);

}  // namespace recurve::reference
