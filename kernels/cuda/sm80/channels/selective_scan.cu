#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/channels/selective_scan.cuh"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = kScanThreads;

// What a lane needs of one channel in one row.
struct Own {
  float x, dt, z;
};
__device__ Own own_at(const SelectiveScanArgs& a, int64_t row, int channel) {
  const float z = a.z == nullptr ? 0 : a.z[row * a.z_stride + channel];
  return {a.x[row * a.x_stride + channel], a.scratch[row * a.D + channel], z};
}
__device__ void put_out(const SelectiveScanArgs& a, int64_t row, int channel, const Own& own,
                        float y) {
  put_scan_output(a, row, channel, scan_output(a, y, a.skip[channel], own.x, own.z));
}

// The scan for N <= kScanShort. Each lane computes the time step and the gate of one row in
// kScanLanes, and its quad of states of all of them; they stay in registers. kVector: N is a
// multiple of 4. T: what states are kept as.
template <typename T, bool kVector>
__global__ void __launch_bounds__(kThreads) rows_kernel(SelectiveScanArgs a, int tiles) {
  let_next_start();
  wait_for_previous();
  const int tile = blockIdx.x % tiles, sequence = blockIdx.x / tiles;
  const int part = threadIdx.x % kScanLanes, n = 4 * part;
  const int channel = (tile * kThreads + static_cast<int>(threadIdx.x)) / kScanLanes;
  const int used = min(channel, a.D - 1), count = channel < a.D ? a.N - n : 0;
  const int64_t begin = a.seqs.begin[sequence], end = a.seqs.begin[sequence + 1];
  T* state = values_of<T>(a.h) + (int64_t{a.seqs.slot[sequence]} * a.D + used) * a.N + n;
  float4 h = load4<kVector>(state, count);
  const ScanQuad quad(load4<false>(a.A + int64_t{used} * a.N + n, count));
  for (int64_t first = begin; first < end; first += kScanLanes) {
    float4 B[kScanLanes], C[kScanLanes];
#pragma unroll
    for (int t = 0; t < kScanLanes; ++t) {
      const float* from = a.params + min(first + t, end - 1) * a.params_stride + a.R + n;
      B[t] = normed_quad(load4<false>(from, a.N - n), a);
      C[t] = normed_quad(load4<false>(from + a.N, a.N - n), a);
    }
    const Own own = own_at(a, min(first + part, end - 1), used);
    float y_own = 0;
#pragma unroll
    for (int t = 0; t < kScanLanes; ++t) {
      if (first + t >= end) break;
      const float dt = __shfl_sync(kAllLanes, own.dt, t, kScanLanes);
      const float x = __shfl_sync(kAllLanes, own.x, t, kScanLanes);
      const float sum = quad.advance(h, dt, __fmul_rn(dt, x), B[t], C[t]);
      if ((first + t - begin + 1) % a.chunk == 0) h = rounded<T>(h);
      const float y = sum_of_scan_lanes(sum);
      if (t == part) y_own = y;
    }
    if (channel < a.D && first + part < end) put_out(a, first + part, channel, own, y_own);
  }
  store4<kVector>(state, h, count);
}

// v (N), of which this lane has every kScanLanes-th value: what it is to be multiplied with.
__device__ float scale_of(const SelectiveScanArgs& a, const float* v, int part) {
  if (a.norm_eps == 0) return 1;
  float squares = 0;
  for (int n = part; n < a.N; n += kScanLanes) squares = fmaf(v[n], v[n], squares);
  return norm_scale(sum_of_scan_lanes(squares), a.N, a.norm_eps);
}

// The scan for any N: the states of the block's channels are in shared memory.
template <typename T>
__global__ void __launch_bounds__(kThreads) any_kernel(SelectiveScanArgs a, int tiles) {
  extern __shared__ float states[];
  let_next_start();
  wait_for_previous();
  const int tile = blockIdx.x % tiles, sequence = blockIdx.x / tiles;
  const int part = threadIdx.x % kScanLanes;
  const int channel = (tile * kThreads + static_cast<int>(threadIdx.x)) / kScanLanes;
  const int used = min(channel, a.D - 1), N = channel < a.D ? a.N : 0;
  T* kept = values_of<T>(a.h) + (int64_t{a.seqs.slot[sequence]} * a.D + used) * a.N;
  float* h = states + threadIdx.x / kScanLanes * a.N;
  for (int n = part; n < N; n += kScanLanes) h[n] = value_of(kept[n]);
  const float* A = a.A + int64_t{used} * a.N;
  const int64_t begin = a.seqs.begin[sequence], end = a.seqs.begin[sequence + 1];
  for (int64_t row = begin; row < end; ++row) {
    const Own own = own_at(a, row, used);
    const float dtx = __fmul_rn(own.dt, own.x);
    const float* B = a.params + row * a.params_stride + a.R;
    const float* C = B + a.N;
    const float B_scale = scale_of(a, B, part), C_scale = scale_of(a, C, part);
    const bool ends_chunk = (row - begin + 1) % a.chunk == 0;
    float y = 0;
    for (int n = part; n < N; n += kScanLanes) {
      ScanQuad::advance(h[n], own.dt, dtx, A[n] * kLog2e, B[n] * B_scale);
      y = __fmaf_rn(C[n] * C_scale, h[n], y);
      if (ends_chunk) h[n] = rounded<T>(h[n]);
    }
    y = sum_of_scan_lanes(y);
    if (channel < a.D && part == 0) put_out(a, row, channel, own, y);
  }
  for (int n = part; n < N; n += kScanLanes) kept[n] = kept_as<T>(h[n]);
}

template <typename T>
void scan_rows(const SelectiveScanArgs& args, Stream& stream) {
  constexpr int kChannels = kThreads / kScanLanes;  // of a block
  const int tiles = ceil_div(args.D, kChannels);
  auto kernel = args.N % 4 == 0 ? rows_kernel<T, true> : rows_kernel<T, false>;
  size_t shared = 0;
  if (args.N > kScanShort) {
    kernel = any_kernel<T>;
    shared = kBytesOfScannedState * args.N;
    abort_if_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(shared)),
                    "selective_scan, shared memory");
  }
  launch_early(stream, "selective_scan", kernel,
               {.grid = static_cast<unsigned>(args.seqs.num_seqs * tiles),
                .threads = kThreads,
                .shared = shared},
               args, tiles);
}

}  // namespace

void run(const SelectiveScanArgs& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  if (takes_step_tiles(args) && args.N == kScanShort && args.seqs.max_len == 1) {
    return selective_scan_steps(args, stream);
  }
  selective_scan_time_steps(args, stream);
  with_state_type(args.h.dtype, [&](auto kept) { scan_rows<decltype(kept)>(args, stream); });
}

}  // namespace recurve::cuda::sm80
