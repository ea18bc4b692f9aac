// A decode of the selective scan: time steps and states of a tile of channels in one kernel.
#include <algorithm>

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/channels/selective_scan.cuh"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kOwned = kTileRows / kScanLanes;  // rows whose time step and gate a lane computes

// What a lane needs of its channel in the rows it owns.
struct Owned {
  float x[kOwned], z[kOwned];
};
__device__ Owned owned_at(const SelectiveScanArgs& a, int64_t row, int rows, int channel) {
  const int part = threadIdx.x % kScanLanes;
  Owned own;
#pragma unroll
  for (int j = 0; j < kOwned; ++j) {
    const int64_t at = row + min(j * kScanLanes + part, rows - 1);
    own.x[j] = a.x[at * a.x_stride + channel];
    own.z[j] = a.z == nullptr ? 0 : a.z[at * a.z_stride + channel];
  }
  return own;
}

template <typename T>
struct Shared {
  StepTile tile;
  T* states[kTileRows];  // (D, N) of each row's slot
  float4 B[kTileRows][kScanLanes], C[kTileRows][kScanLanes];
};

// B and C of the rows, normed where they are.
template <typename T>
__device__ void load_BC(const SelectiveScanArgs& a, int64_t row, int rows, Shared<T>& shared) {
  constexpr int kQuads = 2 * kScanLanes;
  if (threadIdx.x >= kTileRows * kQuads) return;
  const int r = threadIdx.x / kQuads, quad = threadIdx.x % kQuads;
  const float* from = a.params + (row + min(r, rows - 1)) * a.params_stride + a.R + 4 * quad;
  const float4 v = normed_quad(*reinterpret_cast<const float4*>(from), a);
  (quad < kScanLanes ? shared.B : shared.C)[r][quad % kScanLanes] = v;
}

// Asks for the states of the first rows.
template <typename T>
__device__ void prefetch_states(const SelectiveScanArgs& a, int first, int channel) {
  constexpr int kOfLine = 128 / sizeof(T), kLines = kStepChannels * kScanShort / kOfLine;
  const int r = threadIdx.x / kLines, line = threadIdx.x % kLines;
  if (r >= kTileRows || first + r >= a.seqs.num_seqs) return;
  const T* h = values_of<T>(a.h) + (int64_t{a.seqs.slot[first + r]} * a.D + channel) * kScanShort;
  prefetch_to_l2(h + kOfLine * line);
}

// A block: a tile of channels of `each` sequences, kTileRows at a time. Four lanes have a channel.
template <typename T>
__global__ void __launch_bounds__(kStepThreads, 2)
    decode_kernel(SelectiveScanArgs a, int tiles, int each) {
  extern __shared__ uint4 weights[];
  __shared__ Shared<T> shared;
  let_next_start();
  const int tile = static_cast<int>(blockIdx.x) % tiles * kStepChannels;
  const int first = static_cast<int>(blockIdx.x) / tiles * each;
  const int end = min(first + each, a.seqs.num_seqs);
  const int own_channel = static_cast<int>(threadIdx.x) / kScanLanes, channel = tile + own_channel;
  const int part = threadIdx.x % kScanLanes, n = 4 * part;
  auto* dt_proj = reinterpret_cast<uint16_t*>(weights);
  load_step_weights(a, tile, dt_proj);
  prefetch_states<T>(a, first, tile);
  const ScanQuad quad(*reinterpret_cast<const float4*>(a.A + int64_t{channel} * kScanShort + n));
  const float bias = a.dt_bias[channel], skip = a.skip[channel];
  wait_for_copies();
  __syncthreads();
  wait_for_previous();

  const int at = channel * kScanShort + n;
  for (int row = first; row < end; row += kTileRows) {
    const int rows = min(kTileRows, end - row);
    const auto state_of = [&](int r) {
      return values_of<T>(a.h) + int64_t{a.seqs.slot[row + r]} * a.D * kScanShort;
    };
    float4 h[kTileRows];
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      if (r < rows) h[r] = load4<true>(state_of(r) + at, 4);
    }
    if (threadIdx.x < rows) shared.states[threadIdx.x] = state_of(threadIdx.x);
    const Owned own = owned_at(a, row, rows, channel);
    load_BC(a, row, rows, shared);
    multiply_step_rows(a, dt_proj, row, rows, shared.tile);
    __syncthreads();
    float dt_own[kOwned], y_own[kOwned];
#pragma unroll
    for (int j = 0; j < kOwned; ++j) {
      const int r = j * kScanLanes + part;
      dt_own[j] = time_step(time_step_sum(a, shared.tile, r, own_channel) + bias);
    }
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      if (r >= rows) break;
      const float dt = __shfl_sync(kAllLanes, dt_own[r / kScanLanes], r % kScanLanes, kScanLanes);
      const float x = __shfl_sync(kAllLanes, own.x[r / kScanLanes], r % kScanLanes, kScanLanes);
      float y = quad.advance(h[r], dt, __fmul_rn(dt, x), shared.B[r][part], shared.C[r][part]);
      store4<true>(shared.states[r] + at, h[r], 4);
      y = sum_of_scan_lanes(y);
      if (r % kScanLanes == part) y_own[r / kScanLanes] = y;
    }
#pragma unroll
    for (int j = 0; j < kOwned; ++j) {
      const int r = j * kScanLanes + part;
      if (r >= rows) break;
      put_scan_output(a, row + r, channel, scan_output(a, y_own[j], skip, own.x[j], own.z[j]));
    }
    __syncthreads();  // before the next rows' sums
  }
}

}  // namespace

void selective_scan_steps(const SelectiveScanArgs& args, Stream& stream) {
  constexpr int kMany = 64;  // sequences
  const int tiles = args.D / kStepChannels;
  // A block has few sequences where there are few, so that there are blocks enough, and more where
  // there are many.
  int each = ceil_div(args.seqs.num_seqs, 4);
  if (each > kTileRows) each = each > 4 * kTileRows ? 2 * kTileRows : kTileRows;
  const int groups = ceil_div(args.seqs.num_seqs, each);
  const auto kernel = args.h.dtype == DType::kBF16 ? decode_kernel<uint16_t> : decode_kernel<float>;
  launch_early(stream, "selective_scan, steps", kernel,
               {.grid = static_cast<unsigned>(tiles * groups),
                .threads = kStepThreads,
                .shared = step_weights_bytes(args.R),
                .alone = args.seqs.num_seqs >= kMany},
               args, tiles, each);
}

}  // namespace recurve::cuda::sm80
