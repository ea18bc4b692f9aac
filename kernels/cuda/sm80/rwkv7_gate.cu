#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 256, kHeads = kThreads / kWarpSize;  // of a block
constexpr int kHeld = 2;  // channels that a thread keeps between the passes

constexpr float kFastest = 0.60653066f;  // exp(-1/2)
constexpr float kShortest = 1e-12f;      // of a key that is normalised

// What a channel of a row is made from.
struct Channel {
  float w, a, k, v, k_k, k_a, v_first, m;
};
__device__ Channel channel_at(const Rwkv7GateArgs& a, int64_t at, int d) {
  Channel c = {a.w[at], a.a[at], a.k[at], a.v[at], a.k_k[d], a.k_a[d], 0, 0};
  if (a.m != nullptr) {
    c.v_first = a.v_first[at];
    c.m = a.m[at];
  }
  return c;
}

__device__ void put_channel(const Rwkv7GateArgs& a, int64_t at, const Channel& c, float length) {
  const float alpha = sigmoid(c.a);
  a.kk[at] = c.k * c.k_k / length;
  a.w[at] = -kFastest * sigmoid(c.w);
  a.a[at] = alpha;
  a.k[at] = c.k * fmaf(alpha - 1, c.k_a, 1.0f);
  if (a.m != nullptr) a.v[at] = fmaf(c.v_first - c.v, sigmoid(c.m), c.v);
}

// A warp a head of a row. A thread reads and writes the same channels.
__global__ void __launch_bounds__(kThreads) rwkv7_gate_kernel(Rwkv7GateArgs a) {
  let_next_start();
  wait_for_previous();
  const int64_t head = static_cast<int64_t>(blockIdx.x) * kHeads + threadIdx.x / kWarpSize;
  if (head >= static_cast<int64_t>(a.rows) * a.H) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t at = head * a.N;
  const int first = static_cast<int>(head % a.H) * a.N;
  Channel held[kHeld];
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int c = lane + j * kWarpSize;
    held[j] = c < a.N ? channel_at(a, at + c, first + c) : Channel{};
  }
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const float key = held[j].k * held[j].k_k;
    squares = fmaf(key, key, squares);
  }
  for (int c = lane + kHeld * kWarpSize; c < a.N; c += kWarpSize) {
    const float key = a.k[at + c] * a.k_k[first + c];
    squares = fmaf(key, key, squares);
  }
  const float length = max_of(sqrtf(warp_sum(squares)), kShortest);
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int c = lane + j * kWarpSize;
    if (c < a.N) put_channel(a, at + c, held[j], length);
  }
  for (int c = lane + kHeld * kWarpSize; c < a.N; c += kWarpSize) {
    put_channel(a, at + c, channel_at(a, at + c, first + c), length);
  }
}

}  // namespace

void run(const Rwkv7GateArgs& args, Stream& stream) {
  if (args.rows == 0) return;
  launch_early(
      stream, "rwkv7_gate", rwkv7_gate_kernel,
      {.grid = static_cast<unsigned>(ceil_div(args.rows * args.H, kHeads)), .threads = kThreads},
      args);
}

}  // namespace recurve::cuda::sm80
