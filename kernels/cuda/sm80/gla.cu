// The step form, row after row with the state in registers: of steps, and of all rows where the
// chunk form does not take a head's keys.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/chunks.cuh"
#include "kernels/cuda/sm80/gla_chunk.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/vector.cuh"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kWidth = 4;                    // lanes side by side, four columns of S each
constexpr int kGroups = kWarpSize / kWidth;  // lanes above each other, every kGroups-th row of S
constexpr int kColumns = 4 * kWidth;         // of S, a warp
constexpr int kMostThreads = 64;             // a block
constexpr int kMostRows = 8;                 // whose weights are computed together
constexpr unsigned kFirstBlocks = 1024;      // about as many as run at once
constexpr size_t kSharedBytes = 48 << 10;    // that a block may have without asking
constexpr unsigned kAll = 0xffffffffu;       // lanes

// What a key channel brings to a row: decay, weighted key, scaled query; and with a normaliser the
// channel's part of it.
using Weights = float4;

__device__ Weights weights_at(const GlaArgs& a, int64_t row, int head, int x) {
  const int64_t channel = static_cast<int64_t>(head) * a.DK + x;
  float g = 0;
  if (a.decay == GlaDecay::kHead) g = a.g[head];
  if (a.decay == GlaDecay::kToken) g = a.g[row * a.g_stride + head];
  if (a.decay == GlaDecay::kChannel) g = a.g[row * a.g_stride + channel];
  const float k = a.k[row * a.k_stride + channel];
  const float weight = a.i == nullptr ? 1 : expf(a.i[row * a.g_stride + head]);
  return make_float4(expf(g), __fmul_rn(weight, k),
                     __fmul_rn(a.scale, a.q[row * a.q_stride + channel]), 0);
}

// z' = F z + k, rounded alike by all kernels.
__device__ float advance(float z, const Weights& w) { return __fmaf_rn(w.x, z, w.y); }

__device__ void advance(float& S, float& o, const Weights& w, float v) {
  S = __fmaf_rn(w.x, S, __fmul_rn(w.y, v));
  o = __fmaf_rn(w.z, S, o);
}

// Over the groups of a warp.
__device__ float sum_of_groups(float value) {
#pragma unroll
  for (int lanes = kWidth; lanes < kWarpSize; lanes *= 2) {
    value += __shfl_xor_sync(kAll, value, lanes);
  }
  return value;
}

// The weights of `rows` rows, by the whole block. A thread has several on their way at once.
__device__ void compute_weights(const GlaArgs& a, int64_t first, int rows, int head,
                                Weights* weights) {
  constexpr int kAtOnce = 4;
  const int count = rows * a.DK, threads = static_cast<int>(blockDim.x);
  for (int base = threadIdx.x; base < count; base += kAtOnce * threads) {
    Weights w[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int at = min(base + j * threads, count - 1);
      w[j] = weights_at(a, first + at / a.DK, head, at % a.DK);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (base + j * threads < count) weights[base + j * threads] = w[j];
    }
  }
}

// Takes z (DK) over the rows, and gives each channel's part of the normaliser to its weights.
__device__ void add_normaliser(const GlaArgs& a, int rows, float* z, Weights* weights) {
  __syncthreads();
  for (int x = threadIdx.x; x < a.DK; x += blockDim.x) {
    for (int t = 0; t < rows; ++t) {
      Weights& w = weights[t * a.DK + x];
      z[x] = advance(z[x], w);
      w.w = __fmul_rn(w.z, z[x]);
    }
  }
}

// A warp: kColumns columns of S of one head of one sequence. The state is on its way while the
// weights are computed, and is read and written once where DK <= kHeld * kGroups, else once a row.
// kWhole: DK is just that, and DV a multiple of kColumns. kVector: DV is a multiple of 4. together:
// rows whose weights fit the shared memory. steps: rows of chunks are left out.
template <int kHeld, bool kWhole, bool kVector>
__global__ void __launch_bounds__(kMostThreads)
    gla_kernel(GlaArgs a, int tiles, int together, bool steps) {
  extern __shared__ float4 weights[];  // (together, DK); then z: (DK) floats
  constexpr int kSlab = kHeld * kGroups;
  let_next_start();
  const int tile = blockIdx.x % tiles, head = blockIdx.x / tiles % a.H;
  const int sequence = blockIdx.x / tiles / a.H;
  const int lane = threadIdx.x % kWarpSize, group = lane / kWidth;
  const int d = (tile * static_cast<int>(blockDim.x) / kWarpSize +
                 static_cast<int>(threadIdx.x) / kWarpSize) *
                    kColumns +
                lane % kWidth * 4;
  const int columns = kWhole ? 4 : a.DV - d;
  const StepRows mine = step_rows(a.seqs, steps ? a.chunk : 1, sequence);
  const int64_t begin = mine.first, end = mine.end;
  const int64_t state = static_cast<int64_t>(a.seqs.slot[sequence]) * a.H + head;
  float* S = f32_of(a.S) + state * a.DK * a.DV + d;
  if (blockIdx.x < kFirstBlocks) {  // the others find the kernel before this one gone
    for (int x = group; x < min(a.DK, kSlab) && lane % kWidth == 0 && columns > 0; x += kGroups) {
      prefetch_to_l2(S + static_cast<int64_t>(x) * a.DV);
    }
  }
  wait_for_previous();
  if (begin == end) return;

  float4 held[kHeld];
  const auto load = [&](int base) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int x = base + j * kGroups + group;
      held[j] =
          load4<kVector>(S + static_cast<int64_t>(x) * a.DV, kWhole || x < a.DK ? columns : 0);
    }
  };
  const auto store = [&](int base) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int x = base + j * kGroups + group;
      store4<kVector>(S + static_cast<int64_t>(x) * a.DV, held[j],
                      kWhole || x < a.DK ? columns : 0);
    }
  };
  const bool whole = kWhole || a.DK <= kSlab;
  if (whole) load(0);
  float* z = reinterpret_cast<float*>(weights + together * a.DK);
  if (a.z != nullptr) {
    for (int x = threadIdx.x; x < a.DK; x += blockDim.x) z[x] = a.z[state * a.DK + x];
  }

  const auto value_at = [&](int64_t row) {
    return load4<false>(a.v + row * a.v_stride + static_cast<int64_t>(head) * a.DV + d, columns);
  };
  float4 next = value_at(begin);
  for (int64_t first = begin; first < end; first += together) {
    const int rows = min(together, static_cast<int>(end - first));
    compute_weights(a, first, rows, head, weights);
    if (a.z != nullptr) add_normaliser(a, rows, z, weights);
    __syncthreads();
    for (int t = 0; t < rows; ++t) {
      const int64_t row = first + t;
      const float4 v = next;
      if (row + 1 < end) next = value_at(row + 1);
      float4 o = make_float4(0, 0, 0, 0);
      float normaliser = 0;
      for (int base = 0; base < (kWhole ? kSlab : a.DK); base += kSlab) {
        if (!whole) load(base);
#pragma unroll
        for (int j = 0; j < kHeld; ++j) {
          const int x = base + j * kGroups + group;
          if (!kWhole && x >= a.DK) break;
          const Weights w = weights[t * a.DK + x];
          advance(held[j].x, o.x, w, v.x);
          advance(held[j].y, o.y, w, v.y);
          advance(held[j].z, o.z, w, v.z);
          advance(held[j].w, o.w, w, v.w);
          normaliser += w.w;
        }
        if (!whole) store(base);
      }
      o = make_float4(sum_of_groups(o.x), sum_of_groups(o.y), sum_of_groups(o.z),
                      sum_of_groups(o.w));
      if (a.z != nullptr) {
        normaliser = sum_of_groups(normaliser);
        const float divisor = (a.bounded ? max_of(fabsf(normaliser), 1.0f) : normaliser) + a.eps;
        o = make_float4(o.x / divisor, o.y / divisor, o.z / divisor, o.w / divisor);
      }
      if (group == 0) store4<kVector>(a.o + (row * a.H + head) * a.DV + d, o, columns);
    }
    __syncthreads();  // before the next rows' weights
  }
  if (whole) store(0);
}

// A block: z of one head of one sequence, when all have read it.
__global__ void __launch_bounds__(kMostThreads) normaliser_kernel(GlaArgs a, bool steps) {
  let_next_start();
  wait_for_previous();
  const int head = blockIdx.x % a.H, sequence = blockIdx.x / a.H;
  const StepRows mine = step_rows(a.seqs, steps ? a.chunk : 1, sequence);
  const int64_t begin = mine.first, end = mine.end;
  float* z = a.z + (static_cast<int64_t>(a.seqs.slot[sequence]) * a.H + head) * a.DK;
  for (int x = threadIdx.x; x < a.DK; x += kMostThreads) {
    float sum = z[x];
    for (int64_t row = begin; row < end; ++row) sum = advance(sum, weights_at(a, row, head, x));
    z[x] = sum;
  }
}

template <int kHeld>
void launch(const GlaArgs& args, bool steps, Stream& stream) {
  const size_t row_bytes = sizeof(Weights) * static_cast<size_t>(args.DK);
  const size_t z_bytes = sizeof(float) * static_cast<size_t>(args.DK);
  if (row_bytes + z_bytes > kSharedBytes) {
    std::fprintf(stderr, "gla: keys of %d values do not fit this GPU\n", args.DK);
    std::abort();
  }
  const int fitting = static_cast<int>((kSharedBytes - z_bytes) / row_bytes);
  const int together = std::min({kMostRows, fitting, args.seqs.max_len});
  // Few warps are spread over more multiprocessors.
  constexpr int kFewWarps = 256;
  const int warps = (args.DV + kColumns - 1) / kColumns;
  const int threads = args.seqs.num_seqs * args.H * warps <= kFewWarps ? kWarpSize : kMostThreads;
  const int tiles = (warps * kWarpSize + threads - 1) / threads;
  auto kernel = args.DV % 4 == 0 ? gla_kernel<kHeld, false, true> : gla_kernel<kHeld, false, false>;
  if (args.DK == kHeld * kGroups && args.DV % (threads / kWarpSize * kColumns) == 0) {
    kernel = gla_kernel<kHeld, true, true>;
  }
  constexpr int kMany = 4;  // sequences
  launch_early(stream, "gla", kernel,
               {.grid = static_cast<unsigned>(args.seqs.num_seqs * args.H * tiles),
                .threads = static_cast<unsigned>(threads),
                .shared = static_cast<size_t>(together) * row_bytes + z_bytes,
                .alone = args.seqs.num_seqs >= kMany},
               args, tiles, together, steps);
}

}  // namespace

void gla(const GlaArgs& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  const bool chunks = args.chunk > 1 && args.seqs.max_len > 1 && gla_chunks_fit(args);
  if (chunks) gla_chunks(args, stream);
  if (args.DK <= 64) {
    launch<8>(args, chunks, stream);
  } else if (args.DK <= 128) {
    launch<16>(args, chunks, stream);
  } else {
    launch<32>(args, chunks, stream);
  }
  if (args.z == nullptr) return;
  launch_early(
      stream, "gla, normaliser", normaliser_kernel,
      {.grid = static_cast<unsigned>(args.seqs.num_seqs * args.H), .threads = kMostThreads}, args,
      chunks);
}

}  // namespace recurve::cuda::sm80
