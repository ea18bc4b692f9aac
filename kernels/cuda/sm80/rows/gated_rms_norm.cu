#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/rows/activate.cuh"
#include "kernels/cuda/sm80/vector.cuh"

namespace recurve::cuda::sm80 {
namespace {

// One block a group of a row. Its size follows from that of the group alone, so that a row is
// summed in one order whatever the batch. A thread reads and writes the same values, so y may be x.
struct Group {
  const float* x;
  const float* z;  // or null
  const float* w;  // or null
  float* y;
  uint16_t* y_bf16;  // instead, or null
};
__device__ Group group_at(const GatedRmsNormArgs& a, int size) {
  const int64_t row = blockIdx.x / a.G;
  const int first = static_cast<int>(blockIdx.x % a.G) * size;
  return {a.x + row * a.x_stride + first, a.z == nullptr ? nullptr : a.z + row * a.z_stride + first,
          a.w == nullptr ? nullptr : a.w + first, a.y + row * a.y_stride + first,
          a.y_bf16 == nullptr ? nullptr : a.y_bf16 + row * a.y_stride + first};
}

// Any group.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) any_kernel(GatedRmsNormArgs args) {
  let_next_start();
  wait_for_previous();
  const int size = args.D / args.G;
  const auto [x, z, w, y, y_bf16] = group_at(args, size);
  const auto gated = [&](int d) { return z == nullptr ? x[d] : x[d] * silu(z[d]); };
  float squares = 0;
#pragma unroll 4
  for (int d = threadIdx.x; d < size; d += kThreads) squares = fmaf(gated(d), gated(d), squares);
  const float scale = norm_scale(block_sum<kThreads>(squares), size, args.eps);
#pragma unroll 4
  for (int d = threadIdx.x; d < size; d += kThreads) {
    const float normed = gated(d) * scale * (w == nullptr ? 1.0f : w[d]);
    put(y, y_bf16, d, normed);
  }
}

// Four values at a time, all of a group in registers. Everything begins at multiples of 16 bytes.
constexpr int kHeld = 5;
template <int kThreads>
constexpr int kMost = 4 * kHeld * kThreads;  // values of a group
template <int kThreads>
__global__ void __launch_bounds__(kThreads) four_kernel(GatedRmsNormArgs args) {
  let_next_start();
  const int size = args.D / args.G;
  const auto [x, z, w, y, y_bf16] = group_at(args, size);
  const auto four = [](const float* from) { return *reinterpret_cast<const float4*>(from); };
  float4 weight[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int d = 4 * (j * kThreads + static_cast<int>(threadIdx.x));
    if (d < size) weight[j] = w == nullptr ? make_float4(1, 1, 1, 1) : four(w + d);
  }
  wait_for_previous();
  float4 g[kHeld], gate[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int d = 4 * (j * kThreads + static_cast<int>(threadIdx.x));
    if (d >= size) break;
    g[j] = four(x + d);
    if (z != nullptr) gate[j] = four(z + d);
  }
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    if (4 * (j * kThreads + static_cast<int>(threadIdx.x)) >= size) break;
    if (z != nullptr) {
      g[j] = make_float4(g[j].x * silu(gate[j].x), g[j].y * silu(gate[j].y),
                         g[j].z * silu(gate[j].z), g[j].w * silu(gate[j].w));
    }
    squares = fmaf(g[j].x, g[j].x, squares);
    squares = fmaf(g[j].y, g[j].y, squares);
    squares = fmaf(g[j].z, g[j].z, squares);
    squares = fmaf(g[j].w, g[j].w, squares);
  }
  const float scale = norm_scale(block_sum<kThreads>(squares), size, args.eps);
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int d = 4 * (j * kThreads + static_cast<int>(threadIdx.x));
    if (d >= size) break;
    const auto normed = make_float4(g[j].x * scale * weight[j].x, g[j].y * scale * weight[j].y,
                                    g[j].z * scale * weight[j].z, g[j].w * scale * weight[j].w);
    if (y_bf16 != nullptr) {
      *reinterpret_cast<uint2*>(y_bf16 + d) =
          make_uint2(round_bf16(normed.x, normed.y), round_bf16(normed.z, normed.w));
    } else {
      *reinterpret_cast<float4*>(y + d) = normed;
    }
  }
}

bool takes_four(const GatedRmsNormArgs& a) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  const auto even = [](int stride) { return stride % 4 == 0; };
  return even(a.D / a.G) && even(a.x_stride) && even(a.y_stride) && aligned(a.x) && aligned(a.w) &&
         aligned(a.y) && aligned(a.y_bf16) &&
         (a.z == nullptr || (even(a.z_stride) && aligned(a.z)));
}

}  // namespace

void run(const GatedRmsNormArgs& args, Stream& stream) {
  if (args.rows == 0) return;
  const int size = args.D / args.G;
  const auto launch = [&](auto kernel, unsigned threads) {
    launch_early(stream, "gated_rms_norm", kernel,
                 {.grid = static_cast<unsigned>(args.rows * args.G), .threads = threads}, args);
  };
  if (takes_four(args) && size <= kMost<64>) {
    launch(four_kernel<64>, 64);
  } else if (takes_four(args) && size <= kMost<512>) {
    launch(four_kernel<512>, 512);
  } else if (size <= 512) {
    launch(any_kernel<128>, 128);
  } else {
    launch(any_kernel<1024>, 1024);
  }
}

}  // namespace recurve::cuda::sm80
