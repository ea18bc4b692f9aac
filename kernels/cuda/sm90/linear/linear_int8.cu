#include "kernels/cuda/sm90/linear/linear_launch.cuh"
#include "kernels/cuda/sm90/linear/linear_packed.h"

namespace recurve::cuda::sm90 {

void linear_int8(const LinearArgs& args, const Rows& x, Stream& stream) {
  launch_planned<Int8Weights>(args, x, stream);
}

}  // namespace recurve::cuda::sm90
