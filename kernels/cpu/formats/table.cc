#include "kernels/cpu/formats/table.h"

#include "kernels/formats/int4.h"
#include "kernels/formats/int8.h"

namespace recurve::cpu {

void put_formats(Kernels& kernels, const char* implementation) {
  put_format<choose_int8>(kernels, kInt8Weights, implementation);
  put_format<choose_int4>(kernels, kInt4Weights, implementation);
  kernels.linear.transposed.insert({&kInt8Weights, &kInt4Weights});
}

}  // namespace recurve::cpu
