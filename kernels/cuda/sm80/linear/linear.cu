#include <algorithm>
#include <vector>

#include "kernels/ceil_div.h"
#include "kernels/check.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/sm80/linear/linear_bf16.h"
#include "kernels/cuda/sm80/linear/weight_rows.cuh"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kWarps = 8;
constexpr int kRows = 4;  // of x, a block

// Takes the matrices that the tensor-core kernel does not: any K, fp32 weights, and those that are
// packed. A warp makes an output, its lanes side by side along K; each row of x is summed for
// itself.
template <typename Row>
__global__ void __launch_bounds__(kWarps* kWarpSize) any_kernel(LinearArgs args, int row_blocks) {
  const int lane = threadIdx.x % kWarpSize;
  const int64_t n =
      static_cast<int64_t>(blockIdx.x / row_blocks) * kWarps + threadIdx.x / kWarpSize;
  const int first = blockIdx.x % row_blocks * kRows;
  const int64_t N = args.W.N, K = args.W.K;
  if (n >= N) return;
  const int rows = min(kRows, args.rows - first);
  const Row W(args.W, n);
  const float* x = args.x + first * K;
  float sum[kRows] = {};
  for (int64_t k = lane; k < K; k += kWarpSize) {
    const float w = W[k];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r < rows) sum[r] = fmaf(x[r * K + k], w, sum[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float y = warp_sum(sum[r]);
    if (lane != 0 || r >= rows) continue;
    if (args.bias != nullptr) y += args.bias[n];
    if (args.residual != nullptr) y += args.residual[(first + r) * N + n];
    args.y[(first + r) * N + n] = y;
  }
}

// Runs the layer without norm, gate and cap. Which kernel takes a matrix depends on the matrix
// alone, never on the rows.
void bare_linear(const LinearArgs& args, Stream& stream) {
  if (linear_bf16_takes(args.W)) {
    linear_bf16({{args}}, stream);
  } else {
    CHECK(args.activation == Activation::kIdentity);
    const int row_blocks = ceil_div(args.rows, kRows);
    const auto blocks = static_cast<unsigned>(ceil_div(args.W.N, kWarps) * row_blocks);
    with_rows(args.W, [&]<typename Row>() {
      any_kernel<Row><<<blocks, kWarps * kWarpSize, 0, use(stream)>>>(args, row_blocks);
    });
  }
  expect_launched("linear");
}

// Runs the layer for as many rows as fit the scratch: x and z are its two halves.
void linear_rows(const LinearArgs& args, float* normed, float* z, Stream& stream) {
  const int outputs = static_cast<int>(args.outputs());
  LinearArgs bare = args;
  bare.norm = nullptr;
  if (args.norm != nullptr) {
    run(args.norm_into(normed), stream);
    bare.x = normed;
  }
  if (args.swiglu) bare.y = z;
  bare_linear(bare, stream);
  if (args.swiglu) run(args.gate_of(z), stream);
  if (args.soft_cap > 0) {
    run(SoftCapArgs{.count = int64_t{args.rows} * outputs, .cap = args.soft_cap, .x = args.y},
        stream);
  }
}

}  // namespace

void run(const LinearArgs& args, Stream& stream) {
  if (args.rows == 0 || args.W.N == 0) return;
  const std::span<std::byte> scratch = static_cast<CudaStream&>(stream).scratch();
  const int64_t K = args.norm == nullptr ? 0 : args.W.K, N = args.swiglu ? args.W.N : 0;
  const auto floats = static_cast<int64_t>(scratch.size() / sizeof(float));
  const int most =
      K + N == 0 ? args.rows : static_cast<int>(std::min<int64_t>(args.rows, floats / (K + N)));
  CHECK(most > 0);
  auto* normed = reinterpret_cast<float*>(scratch.data());
  for (int row = 0; row < args.rows; row += most) {
    LinearArgs part = args;
    part.rows = std::min(most, args.rows - row);
    part.x = args.x + row * args.W.K;
    part.y = args.y + row * args.outputs();
    if (args.residual != nullptr) part.residual = args.residual + row * args.outputs();
    linear_rows(part, normed, normed + most * K, stream);
  }
}

void run_group(std::span<const LinearArgs> layers, Stream& stream) {
  std::vector<LinearArgs> group;
  for (const LinearArgs& layer : layers) {
    if (layer.rows > 0 && layer.W.N > 0 && linear_bf16_takes(layer.W) && is_plain(layer)) {
      group.push_back(layer);
    } else {
      run(layer, stream);
    }
  }
  linear_bf16(group, stream);
}

}  // namespace recurve::cuda::sm80
