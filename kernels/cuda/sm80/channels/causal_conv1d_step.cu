// A decode of the short convolution: most of its bytes are the rows that the state holds, three
// values of a channel side by side.
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/channels/causal_conv1d.cuh"
#include "kernels/cuda/sm80/channels/causal_conv1d.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kWarps = 2;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kPast = FourChannels::kPast;

// The states of a warp's channels, read and written as they lie in memory, pass through `staging`
// to and from the lanes that compute with them.
struct WarpState {
  float4 (&staging)[kPast * kWarpSize];
  int lane, quads;  // that the warp has

  __device__ void load(const float* from, float4 (&flat)[kPast]) const {
#pragma unroll
    for (int j = 0; j < kPast; ++j) {
      const int at = j * kWarpSize + lane;
      flat[j] = load4<true>(from + 4 * at, at < quads ? 4 : 0);
    }
  }
  __device__ void store(float* to, const float4 (&flat)[kPast]) const {
#pragma unroll
    for (int j = 0; j < kPast; ++j) {
      const int at = j * kWarpSize + lane;
      store4<true>(to + 4 * at, flat[j], at < quads ? 4 : 0);
    }
  }
  __device__ void to_lanes(float4 (&flat)[kPast]) const { exchange(flat, kWarpSize, 1, 1, kPast); }
  __device__ void to_memory(float4 (&flat)[kPast]) const { exchange(flat, 1, kPast, kWarpSize, 1); }

 private:
  // Value j of a lane is written where j is `in` and the lane `in_lane` apart, and read in the same
  // way.
  __device__ void exchange(float4 (&flat)[kPast], int in, int in_lane, int out,
                           int out_lane) const {
#pragma unroll
    for (int j = 0; j < kPast; ++j) staging[j * in + lane * in_lane] = flat[j];
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kPast; ++j) flat[j] = staging[j * out + lane * out_lane];
    __syncwarp();
  }
};

__device__ void prefetch(const float* state, int quads, int lane) {
  constexpr int kQuadsOfLine = 8;
  if (lane * kQuadsOfLine < quads) prefetch_to_l2(state + 4 * kQuadsOfLine * lane);
}

// A warp: four channels a lane, of kEach sequences whose states are on their way together.
template <int kEach>
__global__ void __launch_bounds__(kThreads) step_kernel(CausalConv1dArgs a) {
  __shared__ float4 staging[kWarps][kPast * kWarpSize];
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int first = 4 * (static_cast<int>(blockIdx.x) * kThreads + warp * kWarpSize);  // channel
  if (first >= a.D) return;
  const int d = min(first + 4 * lane, a.D - 4);  // beyond the last, the last again
  const bool there = first + 4 * lane < a.D;
  const WarpState states{staging[warp], lane, min(kPast * kWarpSize, (a.D - first) * kPast / 4)};
  const int64_t row = static_cast<int64_t>(blockIdx.y) * kEach;
  const int rows = min(kEach, a.seqs.num_seqs - static_cast<int>(row));
  const auto state_of = [&](int r) {
    return a.state + (static_cast<int64_t>(a.seqs.slot[row + r]) * a.D + first) * kPast;
  };
  FourChannels channels;
  channels.load_weights(a, d);
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    if (r < rows) prefetch(state_of(r), states.quads, lane);
  }
  wait_for_previous();
  let_next_start();

  float4 flat[kEach][kPast], x[kEach];
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    if (r >= rows) break;
    states.load(state_of(r), flat[r]);
    x[r] = *reinterpret_cast<const float4*>(a.x + (row + r) * a.x_stride + d);
  }
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    if (r >= rows) break;
    states.to_lanes(flat[r]);
    channels.take_past(flat[r]);
    const float4 y = channels.advance(x[r], a.silu);
    if (there) put_four(a, row + r, d, y);
    channels.give_past(flat[r]);
    states.to_memory(flat[r]);
    states.store(state_of(r), flat[r]);
  }
}

}  // namespace

void causal_conv1d_steps(const CausalConv1dArgs& args, Stream& stream) {
  constexpr int kMany = 128, kTogether = 2;  // sequences
  const int each = args.seqs.num_seqs < kMany ? 1 : kTogether;
  const auto kernel = each == 1 ? step_kernel<1> : step_kernel<kTogether>;
  launch_early(stream, "causal_conv1d, steps", kernel,
               {.grid = {static_cast<unsigned>(ceil_div(args.D, 4 * kThreads)),
                         static_cast<unsigned>(ceil_div(args.seqs.num_seqs, each))},
                .threads = kThreads},
               args);
}

}  // namespace recurve::cuda::sm80
