#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/vector.cuh"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 256, kHeads = kThreads / kWarpSize;  // of a block
constexpr int kHeld = 2;  // channels that a thread keeps between the passes

// What a channel of a row is made from.
struct Channel {
  float o, r, k, v, g, r_k, w, b;
};
__device__ Channel channel_at(const HeadNormBonusArgs& a, int64_t at, int d) {
  return {a.o[at], a.r[at], a.k[at], a.v[at], a.g[at], a.r_k[d], a.w[d], a.b[d]};
}

// A warp a head of a row. A thread reads and writes the same channels, so y may be o.
__global__ void __launch_bounds__(kThreads) head_norm_bonus_kernel(HeadNormBonusArgs a) {
  let_next_start();
  wait_for_previous();
  const int64_t head = static_cast<int64_t>(blockIdx.x) * kHeads + threadIdx.x / kWarpSize;
  if (head >= static_cast<int64_t>(a.rows) * a.H) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t at = head * a.N;
  const int first = static_cast<int>(head % a.H) * a.N;
  Channel held[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int c = lane + j * kWarpSize;
    held[j] = c < a.N ? channel_at(a, at + c, first + c) : Channel{};
  }
  // Calls visit(c, channel) for each of this thread.
  const auto for_each = [&](auto visit) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int c = lane + j * kWarpSize;
      if (c < a.N) visit(c, held[j]);
    }
    for (int c = lane + kHeld * kWarpSize; c < a.N; c += kWarpSize) {
      visit(c, channel_at(a, at + c, first + c));
    }
  };
  float sum = 0, bonus = 0, squares = 0;
  for_each([&](int, const Channel& c) {
    sum += c.o;
    bonus = fmaf(c.r * c.k, c.r_k, bonus);
  });
  const float mean = warp_sum(sum) / static_cast<float>(a.N);
  bonus = warp_sum(bonus);
  for_each([&](int, const Channel& c) { squares = fmaf(c.o - mean, c.o - mean, squares); });
  const float scale = norm_scale(warp_sum(squares), a.N, a.eps);
  for_each([&](int c, const Channel& x) {
    const float normed = fmaf((x.o - mean) * scale, x.w, x.b);
    put(a.y, a.y_bf16, at + c, fmaf(bonus, x.v, normed) * x.g);
  });
}

}  // namespace

void run(const HeadNormBonusArgs& args, Stream& stream) {
  if (args.rows == 0) return;
  launch_early(
      stream, "head_norm_bonus", head_norm_bonus_kernel,
      {.grid = static_cast<unsigned>(ceil_div(args.rows * args.H, kHeads)), .threads = kThreads},
      args);
}

}  // namespace recurve::cuda::sm80
