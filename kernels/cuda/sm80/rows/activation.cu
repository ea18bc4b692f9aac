#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/capabilities.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/rows/activate.cuh"
#include "kernels/cuda/sm80/vector.cuh"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 256;

__device__ float activated(const ActivationArgs& args, float x) {
  const float value = args.scale * activate(args.f, x);
  return value < args.floor ? args.floor : value;
}

// Blocks: rows x pieces of the width, of kValues a thread.
template <int kValues>
__global__ void __launch_bounds__(kThreads) activation_kernel(ActivationArgs args, int pieces) {
  let_next_start();
  wait_for_previous();
  const int64_t row = blockIdx.x / pieces;
  const int d =
      (static_cast<int>(blockIdx.x % pieces) * kThreads + static_cast<int>(threadIdx.x)) * kValues;
  if (d >= args.width) return;
  const float* x = args.x + row * args.x_stride + d;
  const int64_t at = row * args.y_stride + d, at_bf16 = row * args.width + d;
  if constexpr (kValues == 1) {
    put(args.y, args.y_bf16, args.y_bf16 == nullptr ? at : at_bf16, activated(args, *x));
  } else {
    const float4 four = *reinterpret_cast<const float4*>(x);
    const float4 y = make_float4(activated(args, four.x), activated(args, four.y),
                                 activated(args, four.z), activated(args, four.w));
    if (args.y_bf16 != nullptr) {
      *reinterpret_cast<uint2*>(args.y_bf16 + at_bf16) = four_of<uint16_t>(y);
    } else {
      *reinterpret_cast<float4*>(args.y + at) = y;
    }
  }
}

// Depends on the shape and place of the arguments alone; both forms give the same bits.
bool takes_vectors(const ActivationArgs& a) {
  return a.width % 4 == 0 && a.x_stride % 4 == 0 && a.y_stride % 4 == 0 && aligned(a.x) &&
         aligned(a.y) && aligned(a.y_bf16);
}

template <int kValues>
void launch(const ActivationArgs& args, Stream& stream) {
  const int pieces = ceil_div(args.width, kThreads * kValues);
  launch_early(stream, "activation", activation_kernel<kValues>,
               {.grid = static_cast<unsigned>(args.rows * pieces), .threads = kThreads}, args,
               pieces);
}

}  // namespace

void run(const ActivationArgs& args, Stream& stream) {
  if (args.rows == 0) return;
  return takes_vectors(args) ? launch<4>(args, stream) : launch<1>(args, stream);
}

}  // namespace recurve::cuda::sm80
