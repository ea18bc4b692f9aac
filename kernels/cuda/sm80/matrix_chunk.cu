#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/activate.cuh"
#include "kernels/cuda/sm80/chunks.cuh"
#include "kernels/cuda/sm80/matrix_chunk.h"
#include "kernels/cuda/sm80/tf32.cuh"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 32;  // of S, a block
constexpr int kTiles = kColumns / 8;
constexpr int kHalves = kThreads / kWarpSize / kTiles;  // of DK, when S is multiplied
constexpr int kPitch = kColumns + 8;                    // of S and v: no two lanes share a bank
static_assert(kHalves == 2);

// DK, rounded up to whole tiles of either product.
__host__ __device__ int padded(int DK) { return (DK + 15) / 16 * 16; }

// A block's shared memory, in floats. What belongs to a block of rows comes twice, for this one and
// for the next.
struct Shared {
  float* S;     // (DK, kPitch)
  float* vw;    // (kBlockRows, kPitch) w_j v_j
  float* part;  // (kBlockRows, kPitch) of the outputs, by the second half of DK
  float* z;     // (DK)
  float* N;     // (kBlockRows) normalisers
  float* sets;
  int keys;       // DK, padded
  bool channels;  // have decays of their own
  __host__ __device__ Shared(float* memory, int DK, bool channel_decay)
      : S(memory),
        vw(S + padded(DK) * kPitch),
        part(vw + kBlockRows * kPitch),
        z(part + kBlockRows * kPitch),
        N(z + padded(DK)),
        sets(N + kBlockRows),
        keys(padded(DK)),
        channels(channel_decay) {}

  __host__ __device__ int floats_of_set() const {
    return kBlockRows * (2 * keys + 12 + kPitch) + (channels ? keys : 0) + kWeights;
  }
  __device__ float* q(int set) const { return sets + set * floats_of_set(); }
  __device__ float* k(int set) const { return q(set) + kBlockRows * (keys + 4); }
  __device__ float* v(int set) const { return k(set) + kBlockRows * (keys + 8); }
  __device__ BlockWeights& weights(int set) const {
    return *reinterpret_cast<BlockWeights*>(v(set) + kBlockRows * kPitch);
  }
  __device__ float* F(int set) const { return v(set) + kBlockRows * kPitch + kWeights; }

  static size_t bytes(int DK, bool channel_decay) {
    const Shared s(nullptr, DK, channel_decay);
    const int before = s.keys * (kPitch + 1) + 2 * kBlockRows * kPitch + kBlockRows;
    return sizeof(float) * static_cast<size_t>(before + 2 * s.floats_of_set());
  }

 private:
  static constexpr int kWeights = sizeof(BlockWeights) / sizeof(float);
};

// `bytes` of them, of 4 kFloats; the rest of these are zeros.
template <int kFloats>
__device__ void copy_async(float* to, const float* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "n"(4 * kFloats), "r"(bytes)
               : "memory");
}

// `rows` of kBlockRows rows, and `columns` of `width` columns; zeros elsewhere.
template <int kFloats>
__device__ void copy_rows(float* to, int pitch, int width, const float* from, int64_t stride,
                          int rows, int columns) {
  for (int at = threadIdx.x; at < kBlockRows * width / kFloats; at += kThreads) {
    const int t = at / (width / kFloats), c = at % (width / kFloats) * kFloats;
    const int there = t < rows ? max(0, min(kFloats, columns - c)) : 0;
    copy_async<kFloats>(to + t * pitch + c, there > 0 ? from + t * stride + c : from, 4 * there);
  }
}

// Where a head's row begins.
__device__ const float* row_at(const RowsOfHeads& rows, int64_t row, int head) {
  return rows.data + row * rows.stride + static_cast<int64_t>(head / rows.heads) * rows.width;
}

// One head of one sequence, kColumns columns.
struct Place {
  int sequence, head, d0, columns;
};

// kVector: rows of q, k and v begin at multiples of 16 bytes.
template <bool kVector>
__device__ void load_block(const MatrixChunkArgs& a, const Shared& s, const Place& at, int block) {
  constexpr int kFloats = kVector ? 4 : 1;
  const RowBlock rows = row_block(a.seqs, a.chunk, at.sequence, a.first_block + block);
  if (rows.L == 0) return;
  const int64_t number = static_cast<int64_t>(at.sequence) * a.blocks + block;
  const int64_t first = a.by_block ? number * kBlockRows : rows.first;
  const int set = block % 2, keys = padded(a.DK);
  copy_rows<kFloats>(s.q(set), keys + 4, keys, row_at(a.q, first, at.head), a.q.stride, rows.L,
                     a.DK);
  copy_rows<kFloats>(s.k(set), keys + 8, keys, row_at(a.k, first, at.head), a.k.stride, rows.L,
                     a.DK);
  copy_rows<kFloats>(s.v(set), kPitch, kColumns, row_at(a.v, rows.first, at.head) + at.d0,
                     a.v.stride, rows.L, at.columns);
  const auto* weights = reinterpret_cast<const float*>(a.weights + number * a.H + at.head);
  constexpr int kWeights = sizeof(BlockWeights) / sizeof(float);
  for (int i = 4 * threadIdx.x; i < kWeights; i += 4 * kThreads) {
    copy_async<4>(reinterpret_cast<float*>(&s.weights(set)) + i, weights + i, 16);
  }
  for (int x = threadIdx.x; a.F != nullptr && x < keys; x += kThreads) {
    copy_async<1>(s.F(set) + x, a.F + (number * a.H + at.head) * a.DK + (x < a.DK ? x : 0),
                  x < a.DK ? 4 : 0);
  }
}

// Copies the columns of S between shared memory and the state.
template <bool kStore>
__device__ void move_state(const MatrixChunkArgs& a, const Shared& s, const Place& at) {
  const int keys = s.keys;
  const int64_t slot = a.seqs.slot[at.sequence];
  float* S = a.S + (slot * a.H + at.head) * a.DK * a.DV;
  for (int i = threadIdx.x; i < keys * kColumns; i += kThreads) {
    const int x = a.keys_inner ? i % keys : i / kColumns;
    const int d = a.keys_inner ? i / keys : i % kColumns;
    const bool there = x < a.DK && d < at.columns;
    const int64_t from = a.keys_inner ? static_cast<int64_t>(at.d0 + d) * a.DK + x
                                      : static_cast<int64_t>(x) * a.DV + at.d0 + d;
    if constexpr (kStore) {
      if (there) S[from] = s.S[x * kPitch + d];
    } else {
      s.S[x * kPitch + d] = there ? S[from] : 0;
    }
  }
}

// z after a block. k: this channel's value of row j is at j pitch.
__device__ float next_z(float F, float z, const float* w, const float* k, int64_t pitch, int L) {
  float sum = 0;
  for (int j = 0; j < L; ++j) sum = __fmaf_rn(w[j], k[j * pitch], sum);
  return __fmaf_rn(F, z, sum);
}

// A warp's tile of e q S, over its half of DK, and of P v, over its half of the rows.
__device__ void multiply_state(const Shared& s, int set, int keys, int tile, int half,
                               float (&o)[4]) {
  const int lane = threadIdx.x % kWarpSize, g = lane / 4, q = lane % 4;
  const float *Q = s.q(set), *V = s.v(set);
  const BlockWeights& weights = s.weights(set);
  TileSum sum;
  for (int x = half * keys / kHalves; x < (half + 1) * keys / kHalves; x += 8) {
    LeftTile a;
    RightTile b;
#pragma unroll
    for (int i = 0; i < 4; ++i) a.at[i] = cut(Q[(g + i % 2 * 8) * (keys + 4) + x + q + i / 2 * 4]);
#pragma unroll
    for (int i = 0; i < 2; ++i) b.at[i] = cut(s.S[(x + q + 4 * i) * kPitch + tile * 8 + g]);
    sum.add(a, b);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) o[i] = weights.e[g + i / 2 * 8] * sum.value(i);
#pragma unroll
  for (int jj = 0; jj < kBlockRows / kHalves; ++jj) {
    const int j = half * (kBlockRows / kHalves) + jj;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = g + i / 2 * 8;  // what a later row holds, NaN too, stays out
      if (j <= t) o[i] = fmaf(weights.P[t][j], V[j * kPitch + tile * 8 + 2 * q + i % 2], o[i]);
    }
  }
}

// The normalisers of the rows, by all warps.
__device__ void find_normalisers(const MatrixChunkArgs& a, const Shared& s, int set, int keys) {
  const int lane = threadIdx.x % kWarpSize;
  for (int t = threadIdx.x / kWarpSize; t < kBlockRows; t += kThreads / kWarpSize) {
    const BlockWeights& weights = s.weights(set);
    float sum = 0;
    for (int x = lane; x < keys; x += kWarpSize) {
      sum = fmaf(s.q(set)[t * (keys + 4) + x], s.z[x], sum);
    }
    sum = weights.e[t] * warp_sum(sum);
    for (int j = 0; j <= t; ++j) sum += weights.P[t][j];
    if (lane == 0) s.N[t] = (a.bounded ? max_of(fabsf(sum), 1.0f) : sum) + a.eps;
  }
}

__device__ void write_output(const MatrixChunkArgs& a, const Shared& s, const Place& at, int set,
                             int first, int t, int d, float o) {
  if (d >= at.columns) return;
  if (a.z != nullptr) o /= s.N[t];
  if (a.skip != nullptr) o = fmaf(a.skip[at.head], s.v(set)[t * kPitch + d], o);
  const int64_t channel = static_cast<int64_t>(at.head) * a.DV + at.d0 + d;
  if (a.gate.data != nullptr) o *= silu(a.gate.data[(first + t) * a.gate.stride + channel]);
  a.o[static_cast<int64_t>(first + t) * a.H * a.DV + channel] = o;
}

__device__ void advance_state(const MatrixChunkArgs& a, const Shared& s, int set, int keys) {
  const int lane = threadIdx.x % kWarpSize, g = lane / 4, q = lane % 4;
  const float* K = s.k(set);
  const float F = s.weights(set).F;
  for (int x = threadIdx.x / kWarpSize * 16; x < keys; x += kThreads / kWarpSize * 16) {
    LeftTile k[kBlockRows / 8];
#pragma unroll
    for (int step = 0; step < kBlockRows / 8; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        k[step].at[i] = cut(K[(8 * step + q + i / 2 * 4) * (keys + 8) + x + g + i % 2 * 8]);
      }
    }
    const float upper = a.F != nullptr ? s.F(set)[x + g] : F;
    const float lower = a.F != nullptr ? s.F(set)[x + g + 8] : F;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      TileSum sum;
#pragma unroll
      for (int step = 0; step < kBlockRows / 8; ++step) {
        RightTile v;
#pragma unroll
        for (int i = 0; i < 2; ++i)
          v.at[i] = cut(s.vw[(8 * step + q + 4 * i) * kPitch + tile * 8 + g]);
        sum.add(k[step], v);
      }
      auto* S = reinterpret_cast<float2*>(s.S + (x + g) * kPitch + tile * 8 + 2 * q);
      *S = make_float2(fmaf(upper, S->x, sum.value(0)), fmaf(upper, S->y, sum.value(1)));
      S += 8 * kPitch / 2;
      *S = make_float2(fmaf(lower, S->x, sum.value(2)), fmaf(lower, S->y, sum.value(3)));
    }
  }
}

// A block: kColumns columns of S of one head of one sequence, kept in shared memory meanwhile.
template <bool kVector>
__global__ void __launch_bounds__(kThreads, 2) chunk_kernel(MatrixChunkArgs a, int tiles) {
  extern __shared__ float4 memory[];
  let_next_start();
  wait_for_previous();
  const int blocks_of_head = static_cast<int>(blockIdx.x) / tiles;
  const int d0 = static_cast<int>(blockIdx.x) % tiles * kColumns;
  const Place at{blocks_of_head / a.H, blocks_of_head % a.H, d0, min(kColumns, a.DV - d0)};
  if (row_block(a.seqs, a.chunk, at.sequence, a.first_block).L == 0) return;
  const int keys = padded(a.DK);
  const Shared s(reinterpret_cast<float*>(memory), a.DK, a.F != nullptr);
  load_block<kVector>(a, s, at, 0);
  asm volatile("cp.async.commit_group;" ::: "memory");
  move_state<false>(a, s, at);
  const int64_t state = static_cast<int64_t>(a.seqs.slot[at.sequence]) * a.H + at.head;
  for (int x = threadIdx.x; a.z != nullptr && x < keys; x += kThreads) {
    s.z[x] = x < a.DK ? a.z[state * a.DK + x] : 0;
  }

  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int tile = warp % kTiles, half = warp / kTiles;
  for (int block = 0; block < a.blocks; ++block) {
    const RowBlock rows = row_block(a.seqs, a.chunk, at.sequence, a.first_block + block);
    if (rows.L == 0) break;
    const int set = block % 2;
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();  // and all are done with the other set
    if (block + 1 < a.blocks) load_block<kVector>(a, s, at, block + 1);
    asm volatile("cp.async.commit_group;" ::: "memory");

    for (int i = threadIdx.x; i < kBlockRows * kColumns; i += kThreads) {
      const int j = i / kColumns, d = i % kColumns;
      s.vw[j * kPitch + d] = s.weights(set).w[j] * s.v(set)[j * kPitch + d];
    }
    if (a.z != nullptr) find_normalisers(a, s, set, keys);
    float o[4];
    multiply_state(s, set, keys, tile, half, o);
    const int t = lane / 4, d = tile * 8 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (half == 1) s.part[(t + i / 2 * 8) * kPitch + d + i % 2] = o[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = t + i / 2 * 8, column = d + i % 2;
      if (half == 1 || row >= rows.L) continue;
      write_output(a, s, at, set, rows.first, row, column, o[i] + s.part[row * kPitch + column]);
    }
    advance_state(a, s, set, keys);
    for (int x = threadIdx.x; a.z != nullptr && x < a.DK; x += kThreads) {
      const float F = a.F != nullptr ? s.F(set)[x] : s.weights(set).F;
      s.z[x] = next_z(F, s.z[x], s.weights(set).w, s.k(set) + x, keys + 8, rows.L);
    }
  }
  __syncthreads();
  move_state<true>(a, s, at);
}

// A block: z of one head of one sequence, when all have read it.
__global__ void __launch_bounds__(kThreads) normaliser_kernel(MatrixChunkArgs a) {
  let_next_start();
  wait_for_previous();
  const int head = static_cast<int>(blockIdx.x) % a.H,
            sequence = static_cast<int>(blockIdx.x) / a.H;
  float* z = a.z + (static_cast<int64_t>(a.seqs.slot[sequence]) * a.H + head) * a.DK;
  for (int block = 0; block < a.blocks; ++block) {
    const RowBlock rows = row_block(a.seqs, a.chunk, sequence, a.first_block + block);
    if (rows.L == 0) break;
    const int64_t number = static_cast<int64_t>(sequence) * a.blocks + block;
    const BlockWeights& weights = a.weights[number * a.H + head];
    const int64_t first = a.by_block ? number * kBlockRows : rows.first;
    for (int x = threadIdx.x; x < a.DK; x += kThreads) {
      const float F = a.F != nullptr ? a.F[(number * a.H + head) * a.DK + x] : weights.F;
      z[x] = next_z(F, z[x], weights.w, row_at(a.k, first, head) + x, a.k.stride, rows.L);
    }
  }
}

size_t most_shared_memory() {
  int device = 0, bytes = 0;
  abort_if_failed(cudaGetDevice(&device), "chunks, device");
  abort_if_failed(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
                  "chunks, size of shared memory");
  return static_cast<size_t>(bytes);
}

bool vectors(const RowsOfHeads& rows) {
  return reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.stride % 4 == 0 &&
         rows.width % 4 == 0;
}

}  // namespace

bool matrix_chunk_fits(int DK, bool channel_decay) {
  return Shared::bytes(DK, channel_decay) <= most_shared_memory();
}

void matrix_chunks(const MatrixChunkArgs& args, Stream& stream) {
  const size_t bytes = Shared::bytes(args.DK, args.F != nullptr);
  const bool vector = vectors(args.q) && vectors(args.k) && vectors(args.v);
  const auto kernel = vector ? chunk_kernel<true> : chunk_kernel<false>;
  use(stream);
  abort_if_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(bytes)),
                  "chunks, shared memory");
  const int tiles = (args.DV + kColumns - 1) / kColumns, heads = args.seqs.num_seqs * args.H;
  launch_early(stream, "chunks", kernel,
               {.grid = static_cast<unsigned>(heads * tiles), .threads = kThreads, .shared = bytes},
               args, tiles);
  if (args.z == nullptr) return;
  launch_early(stream, "chunks, normalisers", normaliser_kernel,
               {.grid = static_cast<unsigned>(heads), .threads = kThreads}, args);
}

}  // namespace recurve::cuda::sm80
