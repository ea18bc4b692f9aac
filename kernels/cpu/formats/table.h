#pragma once
#include "kernels/cpu/linear/linear.h"
#include "kernels/kernels.h"

// Products with the weight formats that have their own implementation here.
namespace recurve::cpu {

LinearProducts choose_int8(const LinearArgs& args);
LinearProducts choose_int4(const LinearArgs& args);

// Writes the ops that multiply with a format so over those of the table. The products take no
// Matrix::transposed.
template <ChooseProducts CHOOSE>
void put_format(Kernels& kernels, const WeightFormat& format, const char* implementation) {
  kernels.linear.put(
      {&format,
       [](const LinearArgs& args, Stream& stream) { linear_with(CHOOSE(args), args, stream); },
       implementation, [](const LinearArgs& args) { return scratch_with(CHOOSE(args), args); }});
  kernels.linear.transposed.erase(&format);
  kernels.expert_linear.put(
      {&format,
       [](const ExpertLinearArgs& args, Stream& stream) { experts_with(CHOOSE, args, stream); },
       implementation, [](const ExpertLinearArgs& args) { return scratch_with(CHOOSE, args); }});
}

// All of these formats.
void put_formats(Kernels& kernels, const char* implementation);

}  // namespace recurve::cpu
