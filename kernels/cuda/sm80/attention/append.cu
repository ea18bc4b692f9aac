#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/attention/pages.cuh"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kRows = 32, kChannels = 32;  // of a block
constexpr int kLines = 8, kThreads = kChannels * kLines;

// As f32_to_bf16(), which keeps the upper bits of a NaN where the instruction does not.
template <typename T>
__device__ T stored(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    const uint32_t bits = __float_as_uint(value);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const uint32_t quiet_nan = bits >> 16 | 0x0040;
    return static_cast<T>((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded);
  }
}

// Blocks: kRows rows x kChannels channels of all heads. Threads have channels side by side where
// they read rows and write values, and rows side by side where they write keys.
template <typename T>
__global__ void __launch_bounds__(kThreads) append_kernel(AppendArgs a) {
  __shared__ float keys[kRows][kChannels + 1];
  __shared__ int32_t pages[kRows];  // of the row's token; 0: it is not stored
  __shared__ int32_t tokens[kRows];
  let_next_start();
  wait_for_previous();
  const int x = static_cast<int>(threadIdx.x) % kChannels;
  const int y = static_cast<int>(threadIdx.x) / kChannels;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRows;
  if (y == 0) {
    pages[x] = 0;
    if (first + x < a.seqs.rows) {
      const int32_t slot = a.seqs.slot[sequence_of(a.seqs, first + x)];
      const int32_t position = a.position[first + x];
      if (slot != 0) pages[x] = page_of(a.keys, slot, position / kPageTokens);
      tokens[x] = static_cast<int32_t>(position % kPageTokens);
    }
  }
  __syncthreads();
  const int width = a.HK * a.D;
  const int channel = static_cast<int>(blockIdx.y) * kChannels + x;
  for (int row = y; row < kRows; row += kLines) {
    if (pages[row] == 0 || channel >= width) continue;
    keys[row][x] = a.k[(first + row) * a.k_stride + channel];
    T* const page = page_at<T>(a.values, pages[row]);
    const int head = channel / a.D, d = channel % a.D;
    page[(static_cast<int64_t>(head) * kPageTokens + tokens[row]) * a.D + d] =
        stored<T>(a.v[(first + row) * a.v_stride + channel]);
  }
  __syncthreads();
  if (pages[x] == 0) return;
  T* const page = page_at<T>(a.keys, pages[x]);
  for (int i = y; i < kChannels; i += kLines) {
    const int64_t of_heads = static_cast<int64_t>(blockIdx.y) * kChannels + i;
    if (of_heads < width) page[of_heads * kPageTokens + tokens[x]] = stored<T>(keys[x][i]);
  }
}

}  // namespace

void run(const AppendArgs& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  const auto kernel =
      args.keys.dtype == DType::kBF16 ? append_kernel<uint16_t> : append_kernel<float>;
  launch_early(stream, "append", kernel,
               {.grid = dim3(static_cast<unsigned>(ceil_div(args.seqs.rows, kRows)),
                             static_cast<unsigned>(ceil_div(args.HK * args.D, kChannels))),
                .threads = kThreads},
               args);
}

}  // namespace recurve::cuda::sm80
