#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/activate.cuh"
#include "kernels/cuda/sm80/chunks.cuh"
#include "kernels/cuda/sm80/matrix_chunk.h"
#include "kernels/cuda/sm80/tf32.cuh"
#include "kernels/cuda/sm80/vector.cuh"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kMostKeys = 256;  // that are loaded at a time

// How a block's kColumns columns of S are divided between its warps, when S is multiplied: a warp
// has the 8 columns of a tile, and of the keys every kParts-th part.
template <int kColumns>
struct Shape {
  static constexpr int kTiles = kColumns / 8;
  static constexpr int kParts = kWarps / kTiles;
  static constexpr int kPitch = kColumns + 8;  // of S and v: no two lanes share a bank
};

// Keys, rounded up to whole tiles of either product.
__host__ __device__ int padded(int keys) { return (keys + 31) / 32 * 32; }

// A block's shared memory, in floats. What is loaded comes twice, for now and for the next turn.
template <int kColumns>
struct Shared {
  static constexpr int kPitch = Shape<kColumns>::kPitch;
  static constexpr int kSums = (Shape<kColumns>::kParts - 1) * kBlockRows * kPitch;
  static constexpr int kWeights = sizeof(BlockWeights) / sizeof(float);
  static constexpr int kRowsSet = kBlockRows * kPitch + kWeights;

  float* S;     // (DK, kPitch)
  float* z;     // (DK)
  float* vw;    // (kBlockRows, kPitch) w_j v_j
  float* sums;  // (kParts - 1, kBlockRows, kPitch) of the outputs, by the later parts of the keys
  float* N;     // (kBlockRows) normalisers
  float* rows;  // 2 sets of v (kBlockRows, kPitch) and weights, of a block of rows
  float* keys;  // 2 sets of q, k and F, of a slice of the keys
  int all;      // keys, padded
  int slice;    // most keys of a slice, padded
  __host__ __device__ Shared(float* memory, int DK)
      : S(memory),
        z(S + padded(DK) * kPitch),
        vw(z + padded(DK)),
        sums(vw + kBlockRows * kPitch),
        N(sums + kSums),
        rows(N + kBlockRows),
        keys(rows + 2 * kRowsSet),
        all(padded(DK)),
        slice(all < kMostKeys ? all : kMostKeys) {}

  __device__ int keys_of_slice(int x0) const { return min(slice, all - x0); }
  __device__ float* v(int set) const { return rows + set * kRowsSet; }
  __device__ BlockWeights& weights(int set) const {
    return *reinterpret_cast<BlockWeights*>(v(set) + kBlockRows * kPitch);
  }
  __host__ __device__ int floats_of_keys() const { return kBlockRows * (2 * slice + 12) + slice; }
  __device__ int q_pitch() const { return slice + 4; }
  __device__ int k_pitch() const { return slice + 8; }
  __device__ float* q(int set) const { return keys + set * floats_of_keys(); }
  __device__ float* k(int set) const { return q(set) + kBlockRows * q_pitch(); }
  __device__ float* F(int set) const { return k(set) + kBlockRows * k_pitch(); }

  static size_t bytes(int DK) {
    const Shared s(nullptr, DK);
    const int before = padded(DK) * (kPitch + 1) + kBlockRows * (kPitch + 1) + kSums + 2 * kRowsSet;
    return sizeof(float) * static_cast<size_t>(before + 2 * s.floats_of_keys());
  }
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

// One head of one sequence, and some columns of it.
struct Place {
  int sequence, head, d0, columns;
};

// What a block works on in one turn: a slice of the keys of one of its blocks of rows.
struct Turn {
  int block, x0;
  __device__ Turn next(int slice, int DK) const {
    return x0 + slice < DK ? Turn{block, x0 + slice} : Turn{block + 1, 0};
  }
};

// kVector: rows of q, k and v begin at multiples of 16 bytes. set: of the keys.
template <bool kVector, int kColumns>
__device__ void load_turn(const MatrixChunkArgs& a, const Shared<kColumns>& s, const Place& at,
                          const Turn& turn, int set) {
  constexpr int kFloats = kVector ? 4 : 1;
  if (turn.block >= a.blocks) return;
  const RowBlock rows = row_block(a.seqs, a.chunk, at.sequence, a.first_block + turn.block);
  if (rows.L == 0) return;
  const int64_t number = static_cast<int64_t>(at.sequence) * a.blocks + turn.block;
  const int64_t first = a.by_block ? number * kBlockRows : rows.first;
  const int left = a.DK - turn.x0;
  copy_rows<kFloats>(s.q(set), s.q_pitch(), s.slice, row_at(a.q, first, at.head) + turn.x0,
                     a.q.stride, rows.L, left);
  copy_rows<kFloats>(s.k(set), s.k_pitch(), s.slice, row_at(a.k, first, at.head) + turn.x0,
                     a.k.stride, rows.L, left);
  for (int x = threadIdx.x; a.F != nullptr && x < s.slice; x += kThreads) {
    const float* F = a.F + (number * a.H + at.head) * a.DK + turn.x0;
    copy_async<1>(s.F(set) + x, F + (x < left ? x : 0), x < left ? 4 : 0);
  }
  if (turn.x0 > 0) return;
  copy_rows<kFloats>(s.v(turn.block % 2), s.kPitch, kColumns,
                     row_at(a.v, rows.first, at.head) + at.d0, a.v.stride, rows.L, at.columns);
  const auto* weights = reinterpret_cast<const float*>(a.weights + number * a.H + at.head);
  for (int i = 4 * threadIdx.x; i < s.kWeights; i += 4 * kThreads) {
    copy_async<4>(reinterpret_cast<float*>(&s.weights(turn.block % 2)) + i, weights + i, 16);
  }
}

// Copies the columns of S between shared memory and the state.
template <bool kStore, typename T, int kColumns>
__device__ void move_state(const MatrixChunkArgs& a, const Shared<kColumns>& s, const Place& at) {
  const int keys = padded(a.DK);
  const int64_t slot = a.seqs.slot[at.sequence];
  T* S = values_of<T>(a.S) + (slot * a.H + at.head) * a.DK * a.DV;
  for (int i = threadIdx.x; i < keys * kColumns; i += kThreads) {
    const int x = a.keys_inner ? i % keys : i / kColumns;
    const int d = a.keys_inner ? i / keys : i % kColumns;
    const bool there = x < a.DK && d < at.columns;
    const int64_t from = a.keys_inner ? static_cast<int64_t>(at.d0 + d) * a.DK + x
                                      : static_cast<int64_t>(x) * a.DV + at.d0 + d;
    if constexpr (kStore) {
      if (there) S[from] = kept_as<T>(s.S[x * s.kPitch + d]);
    } else {
      s.S[x * s.kPitch + d] = there ? value_of(S[from]) : 0;
    }
  }
}

// z after a block. k: this channel's value of row j is at j pitch.
__device__ float next_z(float F, float z, const float* w, const float* k, int64_t pitch, int L) {
  float sum = 0;
  for (int j = 0; j < L; ++j) sum = __fmaf_rn(w[j], k[j * pitch], sum);
  return __fmaf_rn(F, z, sum);
}

// A warp's tile of q S, over its part of a slice of the keys.
template <int kColumns>
__device__ void multiply_state(const Shared<kColumns>& s, int set, int x0, int tile, int part,
                               TileSum& sum) {
  constexpr int kParts = Shape<kColumns>::kParts;
  const int lane = threadIdx.x % kWarpSize, g = lane / 4, q = lane % 4;
  const float *Q = s.q(set), *S = s.S + x0 * s.kPitch;
  const int each = s.keys_of_slice(x0) / kParts;
  for (int x = part * each; x < (part + 1) * each; x += 8) {
    LeftTile a;
    RightTile b;
#pragma unroll
    for (int i = 0; i < 4; ++i) a.at[i] = cut(Q[(g + i % 2 * 8) * s.q_pitch() + x + q + i / 2 * 4]);
#pragma unroll
    for (int i = 0; i < 2; ++i) b.at[i] = cut(S[(x + q + 4 * i) * s.kPitch + tile * 8 + g]);
    sum.add(a, b);
  }
}

// That times e, and P v over the warp's part of the rows.
template <int kColumns>
__device__ void add_values(const Shared<kColumns>& s, int set, int tile, int part,
                           const TileSum& sum, float (&o)[4]) {
  constexpr int kEach = kBlockRows / Shape<kColumns>::kParts;
  const int lane = threadIdx.x % kWarpSize, g = lane / 4, q = lane % 4;
  const BlockWeights& weights = s.weights(set);
  const float* V = s.v(set);
#pragma unroll
  for (int i = 0; i < 4; ++i) o[i] = weights.e[g + i / 2 * 8] * sum.value(i);
#pragma unroll
  for (int j = part * kEach; j < (part + 1) * kEach; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = g + i / 2 * 8;  // what a later row holds, NaN too, stays out
      if (j <= t) o[i] = fmaf(weights.P[t][j], V[j * s.kPitch + tile * 8 + 2 * q + i % 2], o[i]);
    }
  }
}

constexpr int kNormedRows = kBlockRows / kWarps;  // a warp

// What a slice of the keys adds to q z of the warp's rows, of which each lane has a part.
template <int kColumns>
__device__ void multiply_normaliser(const Shared<kColumns>& s, int set, int x0,
                                    float (&qz)[kNormedRows]) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
#pragma unroll
  for (int i = 0; i < kNormedRows; ++i) {
    const float* q = s.q(set) + (warp + i * kWarps) * s.q_pitch();
    for (int x = lane; x < s.keys_of_slice(x0); x += kWarpSize)
      qz[i] = fmaf(q[x], s.z[x0 + x], qz[i]);
  }
}

// The normalisers of the warp's rows.
template <int kColumns>
__device__ void find_normalisers(const MatrixChunkArgs& a, const Shared<kColumns>& s, int set,
                                 const float (&qz)[kNormedRows]) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const BlockWeights& weights = s.weights(set);
#pragma unroll
  for (int i = 0; i < kNormedRows; ++i) {
    const int t = warp + i * kWarps;
    float sum = weights.e[t] * warp_sum(qz[i]);
    for (int j = 0; j <= t; ++j) sum += weights.P[t][j];
    if (lane == 0) s.N[t] = (a.bounded ? max_of(fabsf(sum), weights.floor[t]) : sum) + a.eps;
  }
}

template <int kColumns>
__device__ void write_output(const MatrixChunkArgs& a, const Shared<kColumns>& s, const Place& at,
                             int set, int first, int t, int d, float o) {
  if (d >= at.columns) return;
  if (a.z != nullptr) o /= s.N[t];
  if (a.skip != nullptr) o = fmaf(a.skip[at.head], s.v(set)[t * s.kPitch + d], o);
  const int64_t channel = static_cast<int64_t>(at.head) * a.DV + at.d0 + d;
  if (a.gate.data != nullptr) o *= silu(a.gate.data[(first + t) * a.gate.stride + channel]);
  a.o[static_cast<int64_t>(first + t) * a.H * a.DV + channel] = o;
}

// The first part of the keys adds what the others have and writes.
template <int kColumns>
__device__ void write_outputs(const MatrixChunkArgs& a, const Shared<kColumns>& s, const Place& at,
                              int set, const RowBlock& rows, int tile, const float (&o)[4]) {
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int t = lane / 4 + i / 2 * 8, d = tile * 8 + lane % 4 * 2 + i % 2;
    if (t >= rows.L) continue;
    float sum = o[i];
    for (int part = 1; part < Shape<kColumns>::kParts; ++part) {
      sum += s.sums[((part - 1) * kBlockRows + t) * s.kPitch + d];
    }
    write_output(a, s, at, set, rows.first, t, d, sum);
  }
}

// A slice of the keys of S, rounded as T where the block of rows ends its chunk.
template <typename T, int kColumns>
__device__ void advance_state(const MatrixChunkArgs& a, const Shared<kColumns>& s, int rows_set,
                              int set, int x0, bool ends_chunk) {
  const int lane = threadIdx.x % kWarpSize, g = lane / 4, q = lane % 4;
  const float* K = s.k(set);
  const float F = s.weights(rows_set).F;
  for (int x = threadIdx.x / kWarpSize * 16; x < s.keys_of_slice(x0); x += kWarps * 16) {
    LeftTile k[kBlockRows / 8];
#pragma unroll
    for (int step = 0; step < kBlockRows / 8; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        k[step].at[i] = cut(K[(8 * step + q + i / 2 * 4) * s.k_pitch() + x + g + i % 2 * 8]);
      }
    }
    const float upper = a.F != nullptr ? s.F(set)[x + g] : F;
    const float lower = a.F != nullptr ? s.F(set)[x + g + 8] : F;
#pragma unroll
    for (int tile = 0; tile < Shape<kColumns>::kTiles; ++tile) {
      TileSum sum;
#pragma unroll
      for (int step = 0; step < kBlockRows / 8; ++step) {
        RightTile v;
#pragma unroll
        for (int i = 0; i < 2; ++i)
          v.at[i] = cut(s.vw[(8 * step + q + 4 * i) * s.kPitch + tile * 8 + g]);
        sum.add(k[step], v);
      }
      auto* S = reinterpret_cast<float2*>(s.S + (x0 + x + g) * s.kPitch + tile * 8 + 2 * q);
      const auto advance = [&](float decay, float2& S, float first, float second) {
        S = make_float2(fmaf(decay, S.x, first), fmaf(decay, S.y, second));
        if (ends_chunk) S = make_float2(rounded<T>(S.x), rounded<T>(S.y));
      };
      advance(upper, S[0], sum.value(0), sum.value(1));
      advance(lower, S[8 * s.kPitch / 2], sum.value(2), sum.value(3));
    }
  }
}

// A block: kColumns columns of S of one head of one sequence, kept in shared memory meanwhile.
template <typename T, int kColumns, bool kVector>
__global__ void __launch_bounds__(kThreads, 2) chunk_kernel(MatrixChunkArgs a, int tiles) {
  extern __shared__ float4 memory[];
  let_next_start();
  wait_for_previous();
  const int blocks_of_head = static_cast<int>(blockIdx.x) / tiles;
  const int d0 = static_cast<int>(blockIdx.x) % tiles * kColumns;
  const Place at{blocks_of_head / a.H, blocks_of_head % a.H, d0, min(kColumns, a.DV - d0)};
  if (row_block(a.seqs, a.chunk, at.sequence, a.first_block).L == 0) return;
  const Shared<kColumns> s(reinterpret_cast<float*>(memory), a.DK);
  load_turn<kVector>(a, s, at, {0, 0}, 0);
  asm volatile("cp.async.commit_group;" ::: "memory");
  move_state<false, T>(a, s, at);
  const int64_t state = static_cast<int64_t>(a.seqs.slot[at.sequence]) * a.H + at.head;
  for (int x = threadIdx.x; a.z != nullptr && x < padded(a.DK); x += kThreads) {
    s.z[x] = x < a.DK ? a.z[state * a.DK + x] : 0;
  }

  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int tile = warp % Shape<kColumns>::kTiles, part = warp / Shape<kColumns>::kTiles;
  TileSum sum;
  float qz[kNormedRows] = {};
  int set = 0;
  for (Turn turn{0, 0}; turn.block < a.blocks; set = 1 - set) {
    const int number = a.first_block + turn.block, rows_set = turn.block % 2;
    const RowBlock rows = row_block(a.seqs, a.chunk, at.sequence, number);
    if (rows.L == 0) break;
    const Turn next = turn.next(s.slice, a.DK);
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();  // and all are done with the other sets
    load_turn<kVector>(a, s, at, next, 1 - set);
    asm volatile("cp.async.commit_group;" ::: "memory");

    const BlockWeights& weights = s.weights(rows_set);
    for (int i = threadIdx.x; turn.x0 == 0 && i < kBlockRows * kColumns; i += kThreads) {
      const int j = i / kColumns, d = i % kColumns;
      s.vw[j * s.kPitch + d] = weights.w[j] * s.v(rows_set)[j * s.kPitch + d];
    }
    if (a.z != nullptr) multiply_normaliser(s, set, turn.x0, qz);
    multiply_state(s, set, turn.x0, tile, part, sum);
    const bool last = next.x0 == 0;  // of the slices of the keys
    float o[4];
    if (last) {
      if (a.z != nullptr) find_normalisers(a, s, rows_set, qz);
      add_values(s, rows_set, tile, part, sum, o);
#pragma unroll
      for (int i = 0; part > 0 && i < 4; ++i) {
        const int t = (part - 1) * kBlockRows + lane / 4 + i / 2 * 8;
        s.sums[t * s.kPitch + tile * 8 + lane % 4 * 2 + i % 2] = o[i];
      }
      sum = {};
#pragma unroll
      for (float& q : qz) q = 0;
    }
    __syncthreads();
    if (last && part == 0) write_outputs(a, s, at, rows_set, rows, tile, o);
    const bool ends_chunk = (number + 1) % blocks_of_chunk(a.chunk) == 0;
    advance_state<T>(a, s, rows_set, set, turn.x0, ends_chunk);
    for (int x = threadIdx.x; a.z != nullptr && x < min(s.slice, a.DK - turn.x0); x += kThreads) {
      float& z = s.z[turn.x0 + x];
      z = next_z(a.F != nullptr ? s.F(set)[x] : weights.F, z, weights.w, s.k(set) + x, s.k_pitch(),
                 rows.L);
    }
    turn = next;
  }
  __syncthreads();
  move_state<true, T>(a, s, at);
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

// False if the shared memory of a block does not hold that many columns of S.
template <typename T, int kColumns>
bool launch_columns(const MatrixChunkArgs& args, Stream& stream) {
  const size_t bytes = Shared<kColumns>::bytes(args.DK);
  if (bytes > most_shared_memory()) return false;
  const bool vector = vectors(args.q) && vectors(args.k) && vectors(args.v);
  const auto kernel = vector ? chunk_kernel<T, kColumns, true> : chunk_kernel<T, kColumns, false>;
  use(stream);
  abort_if_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(bytes)),
                  "chunks, shared memory");
  const int tiles = (args.DV + kColumns - 1) / kColumns, heads = args.seqs.num_seqs * args.H;
  launch_early(stream, "chunks", kernel,
               {.grid = static_cast<unsigned>(heads * tiles), .threads = kThreads, .shared = bytes},
               args, tiles);
  return true;
}

template <typename T>
void launch_chunks(const MatrixChunkArgs& args, Stream& stream) {
  if (launch_columns<T, 32>(args, stream) || launch_columns<T, 16>(args, stream)) return;
  std::fprintf(stderr, "chunks: keys of %d values do not fit this GPU\n", args.DK);
  std::abort();
}

}  // namespace

void matrix_chunks(const MatrixChunkArgs& args, Stream& stream) {
  with_state_type(args.S.dtype,
                  [&](auto element) { launch_chunks<decltype(element)>(args, stream); });
  if (args.z == nullptr) return;
  launch_early(stream, "chunks, normalisers", normaliser_kernel,
               {.grid = static_cast<unsigned>(args.seqs.num_seqs * args.H), .threads = kThreads},
               args);
}

}  // namespace recurve::cuda::sm80
