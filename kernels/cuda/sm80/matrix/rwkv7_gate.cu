#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/matrix/rwkv7_gate.cuh"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 256, kHeads = kThreads / kWarpSize;  // of a block
constexpr int kHeld = 2;  // channels that a thread keeps between the passes

__device__ void put_channel(const Rwkv7GateArgs& a, int64_t at, const GateChannel& c,
                            float length) {
  const Gated gated = gate(c, a.m != nullptr, length);
  a.kk[at] = gated.kk;
  a.w[at] = gated.lw;
  a.a[at] = gated.alpha;
  a.k[at] = gated.k;
  if (a.m != nullptr) a.v[at] = gated.v;
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
  GateChannel held[kHeld];
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int c = lane + j * kWarpSize;
    held[j] = c < a.N ? gate_channel(a, at + c, first + c) : GateChannel{};
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
  const float length = key_length(squares);
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int c = lane + j * kWarpSize;
    if (c < a.N) put_channel(a, at + c, held[j], length);
  }
  for (int c = lane + kHeld * kWarpSize; c < a.N; c += kWarpSize) {
    put_channel(a, at + c, gate_channel(a, at + c, first + c), length);
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
