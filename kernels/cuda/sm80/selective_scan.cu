#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/sm80/activate.cuh"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/vector.cuh"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 128;
constexpr int kLanes = 4;           // that share a channel, each with every fourth quad of states
constexpr int kShort = 4 * kLanes;  // states of a channel that fit one quad of each lane
constexpr unsigned kAll = 0xffffffffu;  // lanes

// What a lane needs of one channel in one row.
struct Own {
  float x, dt, z;
};
__device__ Own own_at(const SelectiveScanArgs& a, int64_t row, int channel) {
  const float z = a.z == nullptr ? 0 : a.z[row * a.z_stride + channel];
  return {a.x[row * a.x_stride + channel],
          softplus(a.dt[row * a.dt_stride + channel] + a.dt_bias[channel]), z};
}

// One state, and what it adds to the output. Spelled out, for all kernels must round it alike.
__device__ void advance(float& h, float& y, float dt, float dtx, float A, float B, float C) {
  h = __fmaf_rn(expf(__fmul_rn(dt, A)), h, __fmul_rn(dtx, B));
  y = __fmaf_rn(C, h, y);
}
__device__ void advance(float4& h, float& y, float dt, float dtx, const float4& A, const float4& B,
                        const float4& C) {
  advance(h.x, y, dt, dtx, A.x, B.x, C.x);
  advance(h.y, y, dt, dtx, A.y, B.y, C.y);
  advance(h.z, y, dt, dtx, A.z, B.z, C.z);
  advance(h.w, y, dt, dtx, A.w, B.w, C.w);
}

__device__ float sum_of_lanes(float y) {
  y += __shfl_xor_sync(kAll, y, 1, kLanes);
  return y + __shfl_xor_sync(kAll, y, 2, kLanes);
}

__device__ void put_out(const SelectiveScanArgs& a, int64_t row, int channel, const Own& own,
                        float y) {
  y = __fmaf_rn(a.skip[channel], own.x, y);
  a.y[row * a.D + channel] = a.z == nullptr ? y : y * silu(own.z);
}

// The two kernels for N <= kShort give the same bits. In both, each lane of a group computes the
// time step and the gate of one item in kLanes and its quad of states of all of them: here the
// items are channels of one row, so that much of the state is on its way at once.
// kVector: N is a multiple of 4.
template <bool kVector>
__global__ void __launch_bounds__(kThreads, 8) decode_kernel(SelectiveScanArgs a, int tiles) {
  const int tile = blockIdx.x % tiles, sequence = blockIdx.x / tiles;
  const int part = threadIdx.x % kLanes, n = 4 * part;
  const int own_channel = tile * kThreads + static_cast<int>(threadIdx.x);
  const int first = own_channel - part;
  const int64_t row = a.seqs.begin[sequence];
  float* state =
      static_cast<float*>(a.h.data) + static_cast<int64_t>(a.seqs.slot[sequence]) * a.D * a.N + n;

  // Beyond the last channel a lane computes it again and stores nothing.
  const auto count = [&](int c) { return first + c < a.D ? a.N - n : 0; };
  const auto at = [&](int c) { return static_cast<int64_t>(min(first + c, a.D - 1)) * a.N; };
  float4 h[kLanes];
#pragma unroll
  for (int c = 0; c < kLanes; ++c) h[c] = load4<kVector>(state + at(c), count(c));
  const Own own = own_at(a, row, min(own_channel, a.D - 1));
  const float4 B = load4<false>(a.B + row * a.BC_stride + n, a.N - n);
  const float4 C = load4<false>(a.C + row * a.BC_stride + n, a.N - n);
  float y_own = 0;
#pragma unroll
  for (int c = 0; c < kLanes; ++c) {
    const float dt = __shfl_sync(kAll, own.dt, c, kLanes);
    const float x = __shfl_sync(kAll, own.x, c, kLanes);
    float y = 0;
    advance(h[c], y, dt, __fmul_rn(dt, x), load4<false>(a.A + at(c) + n, count(c)), B, C);
    y = sum_of_lanes(y);
    if (c == part) y_own = y;
    store4<kVector>(state + at(c), h[c], count(c));
  }
  if (own_channel < a.D) put_out(a, row, own_channel, own, y_own);
}

// As above; here the items are rows of one channel, and the state stays in registers.
template <bool kVector>
__global__ void __launch_bounds__(kThreads) rows_kernel(SelectiveScanArgs a, int tiles) {
  const int tile = blockIdx.x % tiles, sequence = blockIdx.x / tiles;
  const int part = threadIdx.x % kLanes, n = 4 * part;
  const int channel = (tile * kThreads + static_cast<int>(threadIdx.x)) / kLanes;
  const int used = min(channel, a.D - 1), count = channel < a.D ? a.N - n : 0;
  const int64_t begin = a.seqs.begin[sequence], end = a.seqs.begin[sequence + 1];
  float* state = static_cast<float*>(a.h.data) +
                 (static_cast<int64_t>(a.seqs.slot[sequence]) * a.D + used) * a.N + n;
  float4 h = load4<kVector>(state, count);
  const float4 A = load4<false>(a.A + static_cast<int64_t>(used) * a.N + n, count);
  for (int64_t first = begin; first < end; first += kLanes) {
    float4 B[kLanes], C[kLanes];
#pragma unroll
    for (int t = 0; t < kLanes; ++t) {
      const int64_t inputs = min(first + t, end - 1) * a.BC_stride + n;
      B[t] = load4<false>(a.B + inputs, a.N - n);
      C[t] = load4<false>(a.C + inputs, a.N - n);
    }
    const Own own = own_at(a, min(first + part, end - 1), used);
    float y_own = 0;
#pragma unroll
    for (int t = 0; t < kLanes; ++t) {
      if (first + t >= end) break;
      const float dt = __shfl_sync(kAll, own.dt, t, kLanes);
      const float x = __shfl_sync(kAll, own.x, t, kLanes);
      float y = 0;
      advance(h, y, dt, __fmul_rn(dt, x), A, B[t], C[t]);
      y = sum_of_lanes(y);
      if (t == part) y_own = y;
    }
    if (channel < a.D && first + part < end) put_out(a, first + part, channel, own, y_own);
  }
  store4<kVector>(state, h, count);
}

// For any N: the state is in memory at every row.
__global__ void __launch_bounds__(kThreads) any_kernel(SelectiveScanArgs a, int tiles) {
  const int tile = blockIdx.x % tiles, sequence = blockIdx.x / tiles;
  const int part = threadIdx.x % kLanes;
  const int channel = (tile * kThreads + static_cast<int>(threadIdx.x)) / kLanes;
  const int used = min(channel, a.D - 1);
  float* state = static_cast<float*>(a.h.data) +
                 (static_cast<int64_t>(a.seqs.slot[sequence]) * a.D + used) * a.N;
  const float* A = a.A + static_cast<int64_t>(used) * a.N;
  for (int64_t row = a.seqs.begin[sequence]; row < a.seqs.begin[sequence + 1]; ++row) {
    const Own own = own_at(a, row, used);
    const float dtx = __fmul_rn(own.dt, own.x);
    float y = 0;
    for (int n = part; n < a.N && channel < a.D; n += kLanes) {
      const int64_t at = row * a.BC_stride + n;
      advance(state[n], y, own.dt, dtx, A[n], a.B[at], a.C[at]);
    }
    y = sum_of_lanes(y);
    if (channel < a.D && part == 0) put_out(a, row, channel, own, y);
  }
}

}  // namespace

void selective_scan(const SelectiveScanArgs& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  constexpr int kManySequences = 8;  // a few are spread over more blocks by the other kernel
  const bool vector = args.N % 4 == 0;
  int channels = kThreads / kLanes;  // of a block
  auto kernel = vector ? rows_kernel<true> : rows_kernel<false>;
  if (args.N > kShort) {
    kernel = any_kernel;
  } else if (args.seqs.max_len == 1 && args.seqs.num_seqs >= kManySequences) {
    kernel = vector ? decode_kernel<true> : decode_kernel<false>;
    channels = kThreads;
  }
  const int tiles = (args.D + channels - 1) / channels;
  kernel<<<args.seqs.num_seqs * tiles, kThreads, 0, use(stream)>>>(args, tiles);
  expect_launched("selective_scan");
}

}  // namespace recurve::cuda::sm80
