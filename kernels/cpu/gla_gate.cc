#include "kernels/cpu/table.h"

namespace recurve::cpu {

void run(const GlaGateArgs& args, Stream& stream) {
  const int D = static_cast<int>(args.W.N);
  run(HeadwiseLinearArgs{.rows = args.rows,
                         .H = 1,
                         .W = args.W,
                         .x_stride = args.low_stride,
                         .y_stride = D,
                         .x = args.low,
                         .y = args.g,
                         .bias = args.bias},
      stream);
  run(ActivationArgs{.rows = args.rows,
                     .width = D,
                     .f = Activation::kLogSigmoid,
                     .scale = args.scale,
                     .floor = args.floor,
                     .x_stride = D,
                     .y_stride = D,
                     .x = args.g,
                     .y = args.g},
      stream);
}

}  // namespace recurve::cpu
