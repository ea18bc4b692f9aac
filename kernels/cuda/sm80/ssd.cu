// The step form, row after row with the state in registers: of steps, and of all rows where the
// chunk form does not take a head's states.
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/activate.cuh"
#include "kernels/cuda/sm80/chunks.cuh"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/ssd.cuh"
#include "kernels/cuda/sm80/ssd_chunk.h"
#include "kernels/cuda/sm80/vector.cuh"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kWarps = 4;  // a block
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kChannels = 8;             // of a head, a warp
constexpr int kSlab = 4 * kWarpSize;     // states of a channel that a warp holds, four a lane
constexpr unsigned kFirstBlocks = 1024;  // about as many as run at once
constexpr unsigned kAll = 0xffffffffu;   // lanes

// What a lane needs of a row: its states' B and C, x of one of the warp's channels.
struct Row {
  float x;
  float4 B, C;
};

// Time step and decay of a row.
struct Step {
  float dt, decay;
};

__device__ Step step_at(const SsdArgs& a, int64_t row, int head) {
  const SsdStep step = ssd_step_at(a, row, head);
  return {step.dt, expf(step.log_decay)};
}

// One head of one sequence, for a lane: p0 is the warp's first channel, n the lane's first state.
// kWhole: the warp has all its channels, N is kSlab, and rows of B and C begin at multiples of 16
// bytes.
template <bool kWhole>
struct Lane {
  const SsdArgs& a;
  int head, p0, n, channels;

  __device__ int states(int channel, int base) const {
    if constexpr (kWhole) return 4;
    return channel < channels ? a.N - base - n : 0;
  }
  __device__ Row row_at(int64_t row, int base) const {
    const int64_t inputs = row * a.xBC_stride;
    const int64_t BC = inputs + static_cast<int64_t>(head / (a.H / a.G)) * a.N + base + n;
    const int p = p0 + min(static_cast<int>(threadIdx.x) % kChannels, channels - 1);
    const float x = a.x[inputs + static_cast<int64_t>(head) * a.P + p];
    if constexpr (kWhole) {
      return {x, *reinterpret_cast<const float4*>(a.B + BC),
              *reinterpret_cast<const float4*>(a.C + BC)};
    }
    return {x, load4<false>(a.B + BC, states(0, base)), load4<false>(a.C + BC, states(0, base))};
  }
};

__device__ void advance(float& h, float& y, float decay, float dtx, float B, float C) {
  h = __fmaf_rn(decay, h, __fmul_rn(dtx, B));
  y = __fmaf_rn(C, h, y);
}
__device__ void advance(float4& h, float& y, float decay, float dtx, const Row& in) {
  advance(h.x, y, decay, dtx, in.B.x, in.C.x);
  advance(h.y, y, decay, dtx, in.B.y, in.C.y);
  advance(h.z, y, decay, dtx, in.B.z, in.C.z);
  advance(h.w, y, decay, dtx, in.B.w, in.C.w);
}

// A warp: kChannels channels of one head of one sequence. The state is on its way while the time
// step is computed, and is read and written once where N <= kSlab, else once a row.
// kVector: N is a multiple of 4. steps: rows of chunks are left out.
template <bool kWhole, bool kVector>
__global__ void __launch_bounds__(kThreads) ssd_kernel(SsdArgs a, int tiles, bool steps) {
  let_next_start();
  const int tile = blockIdx.x % tiles, head = blockIdx.x / tiles % a.H;
  const int sequence = blockIdx.x / tiles / a.H, lane = threadIdx.x % kWarpSize;
  const int p0 = (tile * kWarps + static_cast<int>(threadIdx.x) / kWarpSize) * kChannels;
  if (p0 >= a.P) return;
  const Lane<kWhole> s{a, head, p0, 4 * lane, min(kChannels, a.P - p0)};
  const StepRows rows = step_rows(a.seqs, steps ? a.chunk : 1, sequence);
  const int64_t begin = rows.first, end = rows.end;
  float* state = f32_of(a.h) +
                 ((static_cast<int64_t>(a.seqs.slot[sequence]) * a.H + head) * a.P + p0) * a.N +
                 s.n;
  if (blockIdx.x < kFirstBlocks) {  // the others find the kernel before this one gone
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      if (lane % 8 == 0 && s.states(c, 0) > 0)
        prefetch_to_l2(state + static_cast<int64_t>(c) * a.N);
    }
  }
  const float skip = a.skip[head];
  wait_for_previous();
  if (begin == end) return;

  float4 h[kChannels];
  const auto load = [&](int base) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      h[c] = load4<kVector>(state + static_cast<int64_t>(c) * a.N + base, s.states(c, base));
    }
  };
  const auto store = [&](int base) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      store4<kVector>(state + static_cast<int64_t>(c) * a.N + base, h[c], s.states(c, base));
    }
  };
  const bool whole = kWhole || a.N <= kSlab;
  if (whole) load(0);
  Row next = s.row_at(begin, 0);
  Step step;  // of one of the next kWarpSize rows
  for (int64_t row = begin; row < end; ++row) {
    Row in = next;
    if (row + 1 < end) next = s.row_at(row + 1, 0);
    const int t = static_cast<int>(row - begin) % kWarpSize;
    if (t == 0) step = step_at(a, min(row + lane, end - 1), head);
    const float decay = __shfl_sync(kAll, step.decay, t), x = in.x;
    const float dtx = __fmul_rn(__shfl_sync(kAll, step.dt, t), x);
    float y[kChannels] = {};
    for (int base = 0; base < a.N; base += kSlab) {
      if (base > 0) in = s.row_at(row, base);
      if (!whole) load(base);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        advance(h[c], y[c], decay, __shfl_sync(kAll, dtx, c), in);
      }
      if (!whole) store(base);
    }
    float out = 0;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const float sum = warp_sum(y[c]);
      if (lane == c) out = sum;
    }
    if (lane < s.channels) {
      const int64_t channel = static_cast<int64_t>(head) * a.P + p0 + lane;
      out = __fmaf_rn(skip, x, out);
      if (a.z != nullptr) out *= silu(a.z[row * a.z_stride + channel]);
      a.y[row * a.H * a.P + channel] = out;
    }
  }
  if (whole) store(0);
}

}  // namespace

void ssd(const SsdArgs& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  const bool chunks = args.chunk > 1 && args.seqs.max_len > 1 && ssd_chunks_fit(args);
  if (chunks) ssd_chunks(args, stream);
  const int tiles = (args.P + kWarps * kChannels - 1) / (kWarps * kChannels);
  const auto even = [&](const float* p) {
    return args.xBC_stride % 4 == 0 && reinterpret_cast<uintptr_t>(p) % 16 == 0;
  };
  auto kernel = args.N % 4 == 0 ? ssd_kernel<false, true> : ssd_kernel<false, false>;
  if (args.N == kSlab && args.P % kChannels == 0 && even(args.B) && even(args.C)) {
    kernel = ssd_kernel<true, true>;
  }
  constexpr int kMany = 4;  // sequences
  launch_early(stream, "ssd", kernel,
               {.grid = static_cast<unsigned>(args.seqs.num_seqs * args.H * tiles),
                .threads = kThreads,
                .alone = args.seqs.num_seqs >= kMany},
               args, tiles, chunks);
}

}  // namespace recurve::cuda::sm80
