#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/copies.cuh"
#include "kernels/cuda/sm80/matrix/chunks.cuh"
#include "kernels/cuda/sm80/matrix/matrix_chunk.h"
#include "kernels/cuda/sm80/rows/activate.cuh"
#include "kernels/cuda/sm80/rows_to_shared.cuh"
#include "kernels/cuda/sm80/tf32.cuh"
#include "kernels/cuda/sm80/vector.cuh"

namespace recurve::cuda::sm80 {
namespace {

// How a block's columns of S are divided between its warps: a warp has kWidth of them, of every
// kParts-th part of the keys, in its registers.
constexpr int kWidth = 16;
template <int kWarpsAside, int kPartsOfKeys, int kMostTiles>
struct Shape {
  static constexpr int kAside = kWarpsAside, kParts = kPartsOfKeys;
  static constexpr int kTiles = kMostTiles;  // of 8 keys, that a warp has at most
  static constexpr int kKeys = 8 * kTiles * kParts;
  static constexpr int kWarps = kAside * kParts, kThreads = kWarps * kWarpSize;
  static constexpr int kColumns = kWidth * kAside;
  static constexpr int kPitch = kColumns + 8;  // of v: no two lanes share a bank
};

// A block's shared memory, in floats. What belongs to a block of rows comes once, or twice: for
// this one and for the next.
template <typename Shape>
struct Shared {
  static constexpr int kSums = (Shape::kParts - 1) * kBlockRows * Shape::kPitch;
  static constexpr int kWeights = sizeof(BlockWeights) / sizeof(float);

  float* sums;  // (kParts - 1, kBlockRows, kPitch) of the outputs, by the later parts of the keys
  float* N;     // (kBlockRows) normalisers
  float* z;     // (keys)
  float* sets;
  int keys;      // DK, rounded up to whole tiles of each part
  bool decays;   // each key has a decay
  int set_step;  // floats from a set to the next, or 0: there is one
  __host__ __device__ Shared(float* memory, int DK, bool own_decays, bool twice)
      : sums(memory),
        N(sums + kSums),
        z(N + kBlockRows),
        keys((DK + 8 * Shape::kParts - 1) / (8 * Shape::kParts) * 8 * Shape::kParts),
        decays(own_decays),
        set_step(0) {
    sets = z + keys;
    if (twice) set_step = floats_of_set();
  }

  __host__ __device__ int pitch() const { return keys + 8; }
  __host__ __device__ int floats_of_set() const {
    return kBlockRows * (2 * pitch() + Shape::kPitch) + kWeights + (decays ? keys : 0);
  }
  __device__ float* q(int set) const { return sets + set * set_step; }
  __device__ float* k(int set) const { return q(set) + kBlockRows * pitch(); }
  __device__ float* v(int set) const { return k(set) + kBlockRows * pitch(); }
  __device__ BlockWeights& weights(int set) const {
    return *reinterpret_cast<BlockWeights*>(v(set) + kBlockRows * Shape::kPitch);
  }
  __device__ float* F(int set) const { return v(set) + kBlockRows * Shape::kPitch + kWeights; }

  static size_t bytes(int DK, bool own_decays, bool twice) {
    const Shared s(nullptr, DK, own_decays, false);
    const int before = kSums + kBlockRows + s.keys;
    return sizeof(float) * static_cast<size_t>(before + (twice ? 2 : 1) * s.floats_of_set());
  }
};

// One head of one sequence, and some columns of it.
struct BlockCoord {
  int sequence, head, d0, columns;
};

// Has a block of rows on its way. kVector: rows of q, k and v begin at multiples of 16 bytes.
template <bool kVector, typename Shape>
__device__ void load_block(const MatrixChunkArgs& a, const Shared<Shape>& s, const BlockCoord& at,
                           int block, const RowBlock& rows) {
  constexpr int kFloats = kVector ? 4 : 1, kThreads = Shape::kThreads, kWarps = Shape::kWarps;
  if (rows.L > 0) {
    const int64_t number = static_cast<int64_t>(at.sequence) * a.blocks + block;
    const int64_t first = a.by_block ? number * kBlockRows : rows.first;
    const int set = block % 2;
    copy_rows<kBlockRows, kFloats, kWarps>(s.q(set), s.pitch(), s.keys, row_at(a.q, first, at.head),
                                           a.q.stride, rows.L, a.DK);
    copy_rows<kBlockRows, kFloats, kWarps>(s.k(set), s.pitch(), s.keys, row_at(a.k, first, at.head),
                                           a.k.stride, rows.L, a.DK);
    copy_rows<kBlockRows, kFloats, kWarps>(s.v(set), Shape::kPitch, Shape::kColumns,
                                           row_at(a.v, rows.first, at.head) + at.d0, a.v.stride,
                                           rows.L, at.columns);
    const auto* weights = reinterpret_cast<const float*>(a.weights + number * a.H + at.head);
    for (int i = 4 * threadIdx.x; i < s.kWeights; i += 4 * kThreads) {
      copy_async<4>(reinterpret_cast<float*>(&s.weights(set)) + i, weights + i, 16);
    }
    for (int x = threadIdx.x; s.decays && x < s.keys; x += kThreads) {
      copy_async<1>(s.F(set) + x, a.F + (number * a.H + at.head) * a.DK + (x < a.DK ? x : 0),
                    x < a.DK ? 4 : 0);
    }
  }
  commit_copies();
}

// Where a warp stands, and a lane in its tiles.
template <typename Shape, bool kWhole>
struct Lane {
  int part, x0, count;  // of the keys: the first, and how many tiles
  int d0;               // the warp's first column in the block
  int g, q;
  __device__ explicit Lane(int keys)
      : part(static_cast<int>(threadIdx.x) / kWarpSize / Shape::kAside),
        x0(part * (keys / Shape::kParts)),
        count(keys / Shape::kParts / 8),
        d0(static_cast<int>(threadIdx.x) / kWarpSize % Shape::kAside * kWidth),
        g(threadIdx.x % kWarpSize / 4),
        q(threadIdx.x % 4) {}
  __device__ bool has(int tile) const { return kWhole || tile < count; }
  // The key and the column of value i of what the lane has of a tile of S, transposed.
  __device__ int key(int tile, int i) const { return x0 + 8 * tile + 2 * q + i % 2; }
  __device__ int column(int i) const { return d0 + g + i / 2 * 8; }
};

// A warp's part of S: tiles of its columns and 8 keys, as products leave them.
template <typename Shape>
struct State {
  float at[Shape::kTiles][4];

  // Calls visit(value, place in the state of the head) for what exists of the lane's.
  template <bool kWhole, typename Visit>
  __device__ void for_each(const MatrixChunkArgs& a, const BlockCoord& place,
                           const Lane<Shape, kWhole>& lane, Visit visit) {
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int x = lane.key(tile, i), d = lane.column(i);
        if (!lane.has(tile) || x >= a.DK || d >= place.columns) continue;
        visit(at[tile][i], a.keys_inner ? static_cast<int64_t>(place.d0 + d) * a.DK + x
                                        : static_cast<int64_t>(x) * a.DV + place.d0 + d);
      }
    }
  }
};

// z after a block. k: this channel's value of row j is at j pitch.
__device__ float next_z(float F, float z, const float* w, const float* k, int64_t pitch, int L) {
  float sum = 0;
  for (int j = 0; j < L; ++j) sum = __fmaf_rn(w[j], k[j * pitch], sum);
  return __fmaf_rn(F, z, sum);
}

// The normalisers of the rows, by all warps.
template <typename Shape>
__device__ void find_normalisers(const MatrixChunkArgs& a, const Shared<Shape>& s, int set) {
  const int lane = threadIdx.x % kWarpSize;
  const BlockWeights& weights = s.weights(set);
  for (int t = threadIdx.x / kWarpSize; t < kBlockRows; t += Shape::kWarps) {
    float sum = 0;
    for (int x = lane; x < s.keys; x += kWarpSize) {
      sum = fmaf(s.q(set)[t * s.pitch() + x], s.z[x], sum);
    }
    sum = weights.e[t] * warp_sum(sum);
    for (int j = 0; j <= t; ++j) sum += weights.P[t][j];
    if (lane == 0) s.N[t] = (a.bounded ? max_of(fabsf(sum), weights.floor[t]) : sum) + a.eps;
  }
}

// from: a multiple of 16 bytes where kCount is one of 4.
template <int kCount>
__device__ void load_weights(const float* from, float (&to)[kCount]) {
  if constexpr (kCount % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + i);
      to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = from[i];
  }
}

// What a warp adds to the outputs: of its columns, 8 at a time, as products leave them.
struct Outputs {
  float at[kWidth / 8][4];
};

// e q S over the warp's keys, and P v over its part of the rows. The keys of a tile are taken in
// another order, in which the lanes have their values of S.
template <typename Shape, bool kWhole>
__device__ Outputs multiply_state(const Shared<Shape>& s, int set, const Lane<Shape, kWhole>& lane,
                                  const State<Shape>& S) {
  const float* Q = s.q(set) + lane.g * s.pitch() + lane.x0 + 2 * lane.q;
  TileSum sums[kWidth / 8];
#pragma unroll
  for (int tile = 0; tile < Shape::kTiles; ++tile) {
    if (!lane.has(tile)) break;
    const float2 upper = *reinterpret_cast<const float2*>(Q + 8 * tile);
    const float2 lower = *reinterpret_cast<const float2*>(Q + 8 * s.pitch() + 8 * tile);
    const LeftTile q{{cut(upper.x), cut(lower.x), cut(upper.y), cut(lower.y)}};
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
      sums[n].add(q, {{cut(S.at[tile][2 * n]), cut(S.at[tile][2 * n + 1])}});
    }
  }

  constexpr int kEach = kBlockRows / Shape::kParts;
  const BlockWeights& weights = s.weights(set);
  const int j0 = lane.part * kEach;
  float P[2][kEach], e[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = lane.g + 8 * half;
    e[half] = weights.e[t];
    load_weights<kEach>(&weights.P[t][j0], P[half]);
  }
  const float* V = s.v(set) + j0 * Shape::kPitch + lane.d0 + 2 * lane.q;
  Outputs o;
#pragma unroll
  for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) o.at[n][i] = e[i / 2] * sums[n].value(i);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const float2 v = *reinterpret_cast<const float2*>(V + j * Shape::kPitch + 8 * n);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // What a later row holds, NaN too, stays out.
        if (j0 + j <= lane.g + i / 2 * 8) {
          o.at[n][i] = fmaf(P[i / 2][j], i % 2 == 0 ? v.x : v.y, o.at[n][i]);
        }
      }
    }
  }
  return o;
}

// Calls visit(row, column of the block, value) for the lane's outputs.
template <typename Shape, bool kWhole, typename Visit>
__device__ void for_each_output(const Lane<Shape, kWhole>& lane, const Outputs& o, Visit visit) {
#pragma unroll
  for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      visit(lane.g + i / 2 * 8, lane.d0 + 8 * n + 2 * lane.q + i % 2, o.at[n][i]);
    }
  }
}

template <typename Shape>
__device__ void write_output(const MatrixChunkArgs& a, const Shared<Shape>& s, const BlockCoord& at,
                             int set, int first, int t, int d, float o) {
  if (d >= at.columns) return;
  if (a.z != nullptr) o /= s.N[t];
  if (a.skip != nullptr) o = fmaf(a.skip[at.head], s.v(set)[t * Shape::kPitch + d], o);
  const int64_t channel = static_cast<int64_t>(at.head) * a.DV + at.d0 + d;
  if (a.gate.data != nullptr) o *= silu(a.gate.data[(first + t) * a.gate.stride + channel]);
  a.o[static_cast<int64_t>(first + t) * a.H * a.DV + channel] = o;
}

// ends_chunk: S is rounded as T.
template <typename T, typename Shape, bool kWhole>
__device__ void advance_state(const Shared<Shape>& s, int set, const Lane<Shape, kWhole>& lane,
                              bool ends_chunk, State<Shape>& S) {
  constexpr int kSteps = kBlockRows / 8;
  const BlockWeights& weights = s.weights(set);
  LeftTile v[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = 8 * step + lane.q + i / 2 * 4;
      v[step].at[i] =
          cut(weights.w[j] * s.v(set)[j * Shape::kPitch + lane.d0 + lane.g + i % 2 * 8]);
    }
  }
  const float* K = s.k(set) + lane.q * s.pitch() + lane.x0 + lane.g;
  float2 F = make_float2(weights.F, weights.F);
#pragma unroll
  for (int tile = 0; tile < Shape::kTiles; ++tile) {
    if (!lane.has(tile)) break;
    TileSum sum;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const float* k = K + 8 * step * s.pitch() + 8 * tile;
      sum.add(v[step], {{cut(k[0]), cut(k[4 * s.pitch()])}});
    }
    if (s.decays) F = *reinterpret_cast<const float2*>(s.F(set) + lane.key(tile, 0));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& value = S.at[tile][i];
      value = fmaf(i % 2 == 0 ? F.x : F.y, value, sum.value(i));
      if (ends_chunk) value = rounded<T>(value);
    }
  }
}

// A block: some columns of S of one head of one sequence. kWhole: the keys are just those that its
// registers hold.
template <typename T, typename Shape, bool kVector, bool kWhole>
__global__ void __launch_bounds__(Shape::kThreads, 512 / Shape::kThreads)
    chunk_kernel(MatrixChunkArgs a, int tiles, bool twice) {
  extern __shared__ float4 memory[];
  let_next_start();
  wait_for_previous();
  const int head = static_cast<int>(blockIdx.x) / tiles;
  const int d0 = static_cast<int>(blockIdx.x) % tiles * Shape::kColumns;
  const BlockCoord at{head / a.H, head % a.H, d0, min(Shape::kColumns, a.DV - d0)};
  const auto rows_at = [&](int block) {
    return block < a.blocks ? row_block(a.seqs, a.chunk, at.sequence, a.first_block + block)
                            : RowBlock{0, 0};
  };
  RowBlock rows = rows_at(0);
  if (rows.L == 0) return;
  const Shared<Shape> s(reinterpret_cast<float*>(memory), a.DK, a.F != nullptr, twice);
  const Lane<Shape, kWhole> lane(s.keys);
  load_block<kVector>(a, s, at, 0, rows);
  const int64_t state = static_cast<int64_t>(a.seqs.slot[at.sequence]) * a.H + at.head;
  T* const kept = values_of<T>(a.S) + state * a.DK * a.DV;
  State<Shape> S = {};
  S.for_each(a, at, lane, [&](float& value, int64_t place) { value = value_of(kept[place]); });
  for (int x = threadIdx.x; a.z != nullptr && x < s.keys; x += Shape::kThreads) {
    s.z[x] = x < a.DK ? a.z[state * a.DK + x] : 0;
  }

  for (int block = 0; rows.L > 0; ++block) {
    const int number = a.first_block + block, set = block % 2;
    const RowBlock next = rows_at(block + 1);
    wait_for_copies();
    __syncthreads();  // and all are done with the other set
    if (twice) load_block<kVector>(a, s, at, block + 1, next);

    if (a.z != nullptr) find_normalisers(a, s, set);
    Outputs o = multiply_state(s, set, lane, S);
    for_each_output(lane, o, [&](int t, int d, float value) {
      if (lane.part > 0) s.sums[((lane.part - 1) * kBlockRows + t) * Shape::kPitch + d] = value;
    });
    __syncthreads();
    for_each_output(lane, o, [&](int t, int d, float value) {
      if (lane.part > 0 || t >= rows.L) return;
#pragma unroll
      for (int part = 0; part < Shape::kParts - 1; ++part) {
        value += s.sums[(part * kBlockRows + t) * Shape::kPitch + d];
      }
      write_output(a, s, at, set, rows.first, t, d, value);
    });
    advance_state<T>(s, set, lane, (number + 1) % blocks_of_chunk<>(a.chunk) == 0, S);
    for (int x = threadIdx.x; a.z != nullptr && x < a.DK; x += Shape::kThreads) {
      const float F = s.decays ? s.F(set)[x] : s.weights(set).F;
      s.z[x] = next_z(F, s.z[x], s.weights(set).w, s.k(set) + x, s.pitch(), rows.L);
    }
    rows = next;
    if (twice) continue;
    __syncthreads();
    load_block<kVector>(a, s, at, block + 1, next);
  }
  S.for_each(a, at, lane, [&](float value, int64_t place) { kept[place] = kept_as<T>(value); });
}

constexpr int kNormaliserThreads = 256;

// A block: z of one head of one sequence, when all have read it.
__global__ void __launch_bounds__(kNormaliserThreads) normaliser_kernel(MatrixChunkArgs a) {
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
    for (int x = threadIdx.x; x < a.DK; x += kNormaliserThreads) {
      const float F = a.F != nullptr ? a.F[(number * a.H + head) * a.DK + x] : weights.F;
      z[x] = next_z(F, z[x], weights.w, row_at(a.k, first, head) + x, a.k.stride, rows.L);
    }
  }
}

// False if a block does not hold that many keys.
template <typename T, typename Shape>
bool launch_shape(const MatrixChunkArgs& args, Stream& stream) {
  const bool decays = args.F != nullptr;
  const size_t most = most_shared_memory("chunks");
  const bool twice = Shared<Shape>::bytes(args.DK, decays, true) <= most;
  const size_t bytes = Shared<Shape>::bytes(args.DK, decays, twice);
  if (args.DK > Shape::kKeys || bytes > most) return false;
  const bool vector = whole_rows(args.q) && whole_rows(args.k) && whole_rows(args.v);
  auto kernel = vector ? chunk_kernel<T, Shape, true, false> : chunk_kernel<T, Shape, false, false>;
  if (vector && args.DK == Shape::kKeys) kernel = chunk_kernel<T, Shape, true, true>;
  use(stream);
  abort_if_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(bytes)),
                  "chunks, shared memory");
  const int tiles = ceil_div(args.DV, Shape::kColumns);
  launch_early(stream, "chunks", kernel,
               {.grid = static_cast<unsigned>(args.seqs.num_seqs * args.H * tiles),
                .threads = Shape::kThreads,
                .shared = bytes},
               args, tiles, twice);
  return true;
}

// More columns a block are faster where there are many blocks, fewer where there are few.
template <typename T>
void launch_chunks(const MatrixChunkArgs& args, Stream& stream) {
  if (launch_shape<T, Shape<4, 2, 8>>(args, stream)) return;
  if (launch_shape<T, Shape<2, 4, 8>>(args, stream)) return;
  if (launch_shape<T, Shape<2, 8, 16>>(args, stream)) return;
  if (launch_shape<T, Shape<1, 16, 16>>(args, stream)) return;
  std::fprintf(stderr, "chunks: keys of %d values do not fit this GPU\n", args.DK);
  std::abort();
}

template <typename Shape>
int most_keys_of(bool own_decays, size_t shared_memory) {
  int keys = Shape::kKeys;
  while (keys > 0 && Shared<Shape>::bytes(keys, own_decays, false) > shared_memory) {
    keys -= 8 * Shape::kParts;
  }
  return keys;
}

}  // namespace

int most_keys_of_chunks(bool own_decays, size_t shared_memory) {
  return std::max({most_keys_of<Shape<4, 2, 8>>(own_decays, shared_memory),
                   most_keys_of<Shape<2, 4, 8>>(own_decays, shared_memory),
                   most_keys_of<Shape<2, 8, 16>>(own_decays, shared_memory),
                   most_keys_of<Shape<1, 16, 16>>(own_decays, shared_memory)});
}

void matrix_chunks(const MatrixChunkArgs& args, Stream& stream) {
  with_state_type(args.S.dtype,
                  [&](auto element) { launch_chunks<decltype(element)>(args, stream); });
  if (args.z == nullptr) return;
  launch_early(
      stream, "chunks, normalisers", normaliser_kernel,
      {.grid = static_cast<unsigned>(args.seqs.num_seqs * args.H), .threads = kNormaliserThreads},
      args);
}

}  // namespace recurve::cuda::sm80
