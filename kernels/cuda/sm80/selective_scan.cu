#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/selective_scan.cuh"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = kScanThreads;

// The time steps of all rows before bias and softplus, to the op's scratch (rows, D), in tiles. A
// block: a tile of channels of `each` rows.
__global__ void __launch_bounds__(kStepThreads)
    time_steps_kernel(SelectiveScanArgs a, int tiles, int each) {
  extern __shared__ uint4 weights[];
  __shared__ StepTile tile;
  let_next_start();
  const int channel = static_cast<int>(blockIdx.x) % tiles * kStepChannels;
  const int first = static_cast<int>(blockIdx.x) / tiles * each;
  const int end = min(first + each, a.seqs.rows);
  auto* dt_proj = reinterpret_cast<uint16_t*>(weights);
  load_step_weights(a, channel, dt_proj);
  wait_for_step_weights();
  __syncthreads();
  wait_for_previous();
  for (int row = first; row < end; row += kTileRows) {
    const int rows = min(kTileRows, end - row);
    multiply_step_rows(a, dt_proj, row, rows, tile);
    __syncthreads();
    for (int i = threadIdx.x; i < rows * kStepChannels; i += kStepThreads) {
      const int r = i / kStepChannels, c = i % kStepChannels;
      a.scratch[int64_t{row + r} * a.D + channel + c] = time_step_sum(a, tile, r, c);
    }
    __syncthreads();
  }
}

__device__ float step_weight_at(const Matrix& W, int64_t index) {
  return W.dtype == DType::kBF16 ? widen_bf16(static_cast<const uint16_t*>(W.data)[index])
                                 : static_cast<const float*>(W.data)[index];
}

// The same for any rank and number of channels. A thread: one time step.
__global__ void __launch_bounds__(kThreads) any_time_steps_kernel(SelectiveScanArgs a, int tiles) {
  let_next_start();
  wait_for_previous();
  const int64_t row = blockIdx.x / tiles;
  const int channel = static_cast<int>(blockIdx.x) % tiles * kThreads + threadIdx.x;
  if (channel >= a.D) return;
  const float* low = a.params + row * a.params_stride;
  float sum = 0, squares = 0;
  for (int r = 0; r < a.R; ++r) {
    sum = fmaf(step_weight_at(a.dt_proj, int64_t{channel} * a.R + r), low[r], sum);
    squares = fmaf(low[r], low[r], squares);
  }
  if (a.norm_eps > 0) sum *= norm_scale(squares, a.R, a.norm_eps);
  a.scratch[row * a.D + channel] = sum;
}

// What a lane needs of one channel in one row.
struct Own {
  float x, dt, z;
};
__device__ Own own_at(const SelectiveScanArgs& a, int64_t row, int channel) {
  const float z = a.z == nullptr ? 0 : a.z[row * a.z_stride + channel];
  return {a.x[row * a.x_stride + channel],
          softplus(a.scratch[row * a.D + channel] + a.dt_bias[channel]), z};
}
__device__ void put_out(const SelectiveScanArgs& a, int64_t row, int channel, const Own& own,
                        float y) {
  put_scan_output(a, row, channel, scan_output(a, y, a.skip[channel], own.x, own.z));
}

// For N <= kScanShort. Each lane computes the time step and the gate of one row in kScanLanes, and
// its quad of states of all of them; they stay in registers. kVector: N is a multiple of 4. T: what
// states are kept as.
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
      float y = 0;
      quad.advance(h, y, dt, __fmul_rn(dt, x), B[t], C[t]);
      if ((first + t - begin + 1) % a.chunk == 0) h = rounded<T>(h);
      y = sum_of_scan_lanes(y);
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

// For any N: the states of the block's channels are in shared memory.
template <typename T>
__global__ void __launch_bounds__(kThreads) any_kernel(SelectiveScanArgs a, int tiles) {
  extern __shared__ float states[];
  let_next_start();
  wait_for_previous();
  constexpr float kLog2e = 1.4426950408889634f;
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
      ScanQuad::advance(h[n], y, own.dt, dtx, A[n] * kLog2e, B[n] * B_scale, C[n] * C_scale);
      if (ends_chunk) h[n] = rounded<T>(h[n]);
    }
    y = sum_of_scan_lanes(y);
    if (channel < a.D && part == 0) put_out(a, row, channel, own, y);
  }
  for (int n = part; n < N; n += kScanLanes) kept[n] = kept_as<T>(h[n]);
}

void time_steps(const SelectiveScanArgs& args, Stream& stream) {
  const int rows = args.seqs.rows;
  if (takes_step_tiles(args)) {
    constexpr int kEach = 8 * kTileRows;
    const int tiles = args.D / kStepChannels;
    launch_early(stream, "selective_scan, time steps", time_steps_kernel,
                 {.grid = static_cast<unsigned>(tiles * ceil_div(rows, kEach)),
                  .threads = kStepThreads,
                  .shared = step_weights_bytes(args.R)},
                 args, tiles, kEach);
  } else {
    const int tiles = ceil_div(args.D, kThreads);
    launch_early(stream, "selective_scan, time steps", any_time_steps_kernel,
                 {.grid = static_cast<unsigned>(rows * tiles), .threads = kThreads}, args, tiles);
  }
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

void selective_scan(const SelectiveScanArgs& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  if (takes_step_tiles(args) && args.N == kScanShort && args.seqs.max_len == 1) {
    return selective_scan_steps(args, stream);
  }
  time_steps(args, stream);
  with_state_type(args.h.dtype, [&](auto kept) { scan_rows<decltype(kept)>(args, stream); });
}

}  // namespace recurve::cuda::sm80
