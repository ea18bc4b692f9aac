// What the chunk form of the delta rule needs of a block of rows that does not know the state.
#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/matrix/delta_chunk.h"
#include "kernels/cuda/sm80/rows_to_shared.cuh"
#include "kernels/cuda/sm80/tf32.cuh"
#include "kernels/cuda/sm80/tile.cuh"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarpSize;
constexpr int kPitch = kDeltaRows + 4;
static_assert(kDeltaRows == kWarpSize && kWarps * 16 == 2 * kDeltaRows);

// The keys of a head in shared memory, rounded up to whole tiles, and from a row to the next: no
// two lanes that read a tile share a bank.
int pitch_of(int DK) { return ceil_div(DK, kWarpSize) * kWarpSize + 4; }

// What a block shares in addition to its queries and keys.
struct alignas(16) Shared {
  float A[kDeltaRows][kPitch];
  float P[kDeltaRows][kPitch];
  float g[kDeltaRows], beta[kDeltaRows];
};

// Multiplies 16 rows, those of the warp, with all keys: their products go to `to`.
__device__ void multiply_with_keys(const float* rows, const float* keys, int pitch, int DK,
                                   float (*to)[kPitch]) {
  const int g = threadIdx.x % kWarpSize / 4, q = threadIdx.x % 4;
  constexpr int kTiles = kDeltaRows / 8;
  TileSum sums[kTiles];
  const float* left = rows + g * pitch + q;
  const float* right = keys + g * pitch + q;
#pragma unroll 2
  for (int x = 0; x < DK; x += 8) {
    const LeftTile a{{cut_finite(left[x]), cut_finite(left[x + 8 * pitch]), cut_finite(left[x + 4]),
                      cut_finite(left[x + 8 * pitch + 4])}};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float* b = right + 8 * n * pitch + x;
      sums[n].add(a, {{cut_finite(b[0]), cut_finite(b[4])}});
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[g + i / 2 * 8][8 * n + 2 * q + i % 2] = sums[n].value(i);
  }
}

// Gives the products of keys and those of queries their decays: a warp some rows, a lane a column.
// Sums of decays grow from the column on, so that none is a difference of large ones.
__device__ void fade_products(Shared& s, float scale) {
  constexpr int kRows = kDeltaRows / kWarps;
  const int j = threadIdx.x % kWarpSize;
  const int first = static_cast<int>(threadIdx.x) / kWarpSize * kRows;
  float sum = 0;
  for (int t = 0; t < first + kRows; ++t) {
    if (t > j) sum += s.g[t];
    if (t < first) continue;
    const float decay = expf(sum);
    s.A[t][j] = j < t ? s.A[t][j] * decay : 0;
    s.P[t][j] = j <= t ? scale * s.P[t][j] * decay : 0;
  }
}

// (1 + A)^-1 of each half of the rows by forward substitution, a lane a column, times beta_j; and
// what stands between the halves. A has no beta yet.
__device__ void solve(const Shared& s, DeltaBlock& out) {
  const int j = threadIdx.x % kDeltaHalf, half = static_cast<int>(threadIdx.x) / kDeltaHalf;
  const int first = half * kDeltaHalf;
  float x[kDeltaHalf];
#pragma unroll
  for (int t = 0; t < kDeltaHalf; ++t) {
    const float* A = &s.A[first + t][first];
    float sums[4] = {};
#pragma unroll
    for (int i = 0; i < t; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(A + i);
      sums[0] = fmaf(four.x, x[i], sums[0]);
      if (i + 1 < t) sums[1] = fmaf(four.y, x[i + 1], sums[1]);
      if (i + 2 < t) sums[2] = fmaf(four.z, x[i + 2], sums[2]);
      if (i + 3 < t) sums[3] = fmaf(four.w, x[i + 3], sums[3]);
    }
    const float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    x[t] = fmaf(-s.beta[first + t], sum, t == j ? 1.0f : 0.0f);
  }
  const float beta = s.beta[first + j];
#pragma unroll
  for (int t = 0; t < kDeltaHalf; ++t) {
    out.M[first + t][first + j] = beta * x[t];
    // The first half writes what the second has of its rows.
    if (half == 0) out.M[kDeltaHalf + t][j] = s.A[kDeltaHalf + t][j];
  }
}

// What of the state is there at each row, and of each row at the end of the block.
__device__ void weigh_rows(const Shared& s, int L, float scale, DeltaBlock& out) {
  const int t = threadIdx.x % kWarpSize;
  float before = 0, behind = 0;
  for (int i = 0; i <= t; ++i) before += s.g[i];
  for (int i = L - 1; i > t; --i) behind += s.g[i];
  const bool there = t < L;
  out.e[t] = there ? expf(before) : 0;
  out.read[t] = there ? scale * expf(before) : 0;
  out.w[t] = there ? expf(behind) : 0;
  if (t == L - 1) out.F = expf(before);
}

// A block: a head of a block of rows.
template <bool kVector>
__global__ void __launch_bounds__(kThreads)
    weights_kernel(DeltaRuleArgs a, int first_block, int blocks, int pitch, DeltaBlock* weights) {
  extern __shared__ float4 memory[];
  __shared__ Shared s;
  let_next_start();
  wait_for_previous();
  const int number = static_cast<int>(blockIdx.x) / a.H, head = static_cast<int>(blockIdx.x) % a.H;
  const RowBlock rows =
      row_block<kDeltaRows>(a.seqs, a.chunk, number / blocks, first_block + number % blocks);
  if (rows.L == 0) return;
  float* const k = reinterpret_cast<float*>(memory);
  float* const q = k + kDeltaRows * pitch;
  const int64_t key = static_cast<int64_t>(head / (a.H / a.HK)) * a.DK;
  const int64_t first = rows.first;
  copy_rows<kDeltaRows, kVector ? 4 : 1, kWarps>(
      k, pitch, pitch - 4, a.k + first * a.k_stride + key, a.k_stride, rows.L, a.DK);
  copy_rows<kDeltaRows, kVector ? 4 : 1, kWarps>(
      q, pitch, pitch - 4, a.q + first * a.q_stride + key, a.q_stride, rows.L, a.DK);
  commit_copies();
  const int t = static_cast<int>(threadIdx.x), warp = t / kWarpSize;
  if (t < kDeltaRows) {
    const bool there = t < rows.L;
    const bool fades = there && a.decay == DeltaDecay::kToken;
    s.g[t] = fades ? a.g[(first + t) * a.g_stride + head] : 0;
    s.beta[t] = there ? a.beta[(first + t) * a.beta_stride + head] : 0;
  }
  wait_for_copies();
  __syncthreads();
  const int half = warp % 2 * 16;
  multiply_with_keys((warp < 2 ? k : q) + half * pitch, k, pitch, a.DK,
                     (warp < 2 ? s.A : s.P) + half);
  __syncthreads();
  fade_products(s, a.scale);
  __syncthreads();
  DeltaBlock& out = weights[blockIdx.x];
  if (warp == 0) solve(s, out);
  if (warp == 1) weigh_rows(s, rows.L, a.scale, out);
  for (int j = warp; j < kDeltaRows; j += kWarps) {
    out.P[j][t % kWarpSize] = s.P[t % kWarpSize][j];
  }
}

}  // namespace

void weigh_delta_blocks(const DeltaRuleArgs& args, int first_block, int blocks, DeltaBlock* weights,
                        Stream& stream) {
  const int pitch = pitch_of(args.DK);
  const bool vector = whole_rows({args.q, args.q_stride, 1, args.DK}) &&
                      whole_rows({args.k, args.k_stride, 1, args.DK});
  const auto kernel = vector ? weights_kernel<true> : weights_kernel<false>;
  const size_t bytes = sizeof(float) * 2 * kDeltaRows * static_cast<size_t>(pitch);
  use(stream);
  abort_if_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(bytes)),
                  "delta_rule, weights of chunks");
  launch_early(stream, "delta_rule, weights of chunks", kernel,
               {.grid = static_cast<unsigned>(args.seqs.num_seqs * blocks * args.H),
                .threads = kThreads,
                .shared = bytes},
               args, first_block, blocks, pitch, weights);
}

}  // namespace recurve::cuda::sm80
