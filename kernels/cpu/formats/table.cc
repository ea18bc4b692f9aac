#include "kernels/cpu/formats/table.h"

#include "kernels/formats/int4.h"
#include "kernels/formats/int8.h"

namespace recurve::cpu {

void put_formats(LinearOp& linear, const char* implementation) {
  linear.put({&kInt8Weights, run_int8, implementation});
  linear.put({&kInt4Weights, run_int4, implementation});
}

}  // namespace recurve::cpu
