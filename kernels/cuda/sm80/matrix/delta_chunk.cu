// The blocks of rows of a sequence, one after another. A block of threads has some columns of S of
// a head, in registers: a warp 16 of them, of a part of the keys. What the rows read of the state
// is added up over the parts in shared memory. In between a warp has all rows of a few columns, so
// that rows that wait for rows wait for no other warp.
#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/matrix/delta_chunk.h"
#include "kernels/cuda/sm80/rows_to_shared.cuh"
#include "kernels/cuda/sm80/tf32.cuh"
#include "kernels/cuda/sm80/tile.cuh"
#include "kernels/cuda/sm80/vector.cuh"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kWidth = 16;                   // columns of a warp
constexpr int kTilesDown = kDeltaRows / 16;  // of 16 rows
constexpr int kSteps = kDeltaRows / 8;       // of rows, where a product goes over them

// How the columns and keys are divided between the warps.
template <int kWarpsAside, int kPartsOfKeys, int kKeyTiles>
struct Shape {
  static constexpr int kAside = kWarpsAside, kParts = kPartsOfKeys;
  static constexpr int kTiles = kKeyTiles;  // of 8 keys, that a warp has
  static constexpr int kKeys = 8 * kTiles * kParts;
  static constexpr int kWarps = kAside * kParts, kThreads = kWarps * kWarpSize;
  static constexpr int kColumns = kWidth * kAside;
  static constexpr int kRowPitch = kKeys + 8;                     // no two lanes share a bank
  static constexpr int kPitch = kColumns + 8;                     // the same
  static constexpr int kEach = kDeltaRows * kColumns / kThreads;  // rows of a thread, of a column
};
// Twice the warps of half the keys are slower: there is more to add up and to bring.
using Narrow = Shape<4, 2, 4>;  // of 64 keys, at most
using Middle = Shape<4, 2, 8>;  // of 128
using Wide = Shape<2, 4, 8>;    // of 256

// What a block of rows brings. There are two sets: for this one and for the next.
template <typename Shape>
struct alignas(16) Set {
  float k[kDeltaRows][Shape::kRowPitch];
  float q[kDeltaRows][Shape::kRowPitch];
  float v[kDeltaRows][Shape::kPitch];
  DeltaBlock weights;
};

template <typename Shape>
struct alignas(16) Shared {
  static constexpr int kHeldPitch = kDeltaRows + 4;  // no two lanes share a bank
  Set<Shape> set[2];
  // What each part of the keys has of the state, under the keys of the rows and for their queries.
  float held[Shape::kParts][Shape::kColumns][kHeldPitch];
  float read[Shape::kParts][kDeltaRows][Shape::kPitch];
  float U[kDeltaRows][Shape::kPitch];
};

// Some columns of one head of one sequence.
struct Coord {
  int sequence, head, d0, columns;
};

// Has a block of rows on its way. kVector: rows of q, k and v begin at multiples of 16 bytes.
template <bool kVector, typename Shape>
__device__ void load_block(const DeltaChunkArgs& a, Set<Shape>& set, const Coord& at, int block,
                           const RowBlock& rows) {
  constexpr int kFloats = kVector ? 4 : 1, kWarps = Shape::kWarps;
  if (rows.L > 0) {
    copy_rows<kDeltaRows, kFloats, kWarps>(set.k[0], Shape::kRowPitch, Shape::kKeys,
                                           row_at(a.k, rows.first, at.head), a.k.stride, rows.L,
                                           a.DK);
    copy_rows<kDeltaRows, kFloats, kWarps>(set.q[0], Shape::kRowPitch, Shape::kKeys,
                                           row_at(a.q, rows.first, at.head), a.q.stride, rows.L,
                                           a.DK);
    copy_rows<kDeltaRows, kFloats, kWarps>(set.v[0], Shape::kPitch, Shape::kColumns,
                                           row_at(a.v, rows.first, at.head) + at.d0, a.v.stride,
                                           rows.L, at.columns);
    const int64_t number = static_cast<int64_t>(at.sequence) * a.blocks + block;
    copy_all<sizeof(DeltaBlock), Shape::kThreads>(&set.weights, &a.weights[number * a.H + at.head]);
  }
  commit_copies();
}

// Where a warp stands, and a lane in its tiles.
template <typename Shape>
struct Lane {
  int part, x0;  // of the keys, and the first
  int d0;        // the warp's first column in the block
  int g, q;
  __device__ Lane()
      : part(static_cast<int>(threadIdx.x) / kWarpSize / Shape::kAside),
        x0(part * 8 * Shape::kTiles),
        d0(static_cast<int>(threadIdx.x) / kWarpSize % Shape::kAside * kWidth),
        g(threadIdx.x % kWarpSize / 4),
        q(threadIdx.x % 4) {}
};

// A warp's part of S: tiles of its columns and 8 keys, as products of (16, 8) leave them.
template <typename Shape>
struct State {
  float at[Shape::kTiles][4];

  // Calls visit(value, place in the state of the head) for what exists of the lane's.
  template <typename Visit>
  __device__ void for_each(const DeltaChunkArgs& a, const Coord& place, const Lane<Shape>& lane,
                           Visit visit) {
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int x = lane.x0 + 8 * tile + 2 * lane.q + i % 2, d = lane.d0 + lane.g + i / 2 * 8;
        if (x >= a.DK || d >= place.columns) continue;
        visit(at[tile][i], static_cast<int64_t>(x) * a.DV + place.d0 + d);
      }
    }
  }
};

// Two sums of a tile: of large parts, and of what small ones bring.
struct PairSum {
  float large[4] = {}, small[4] = {};

  __device__ void add(const LeftTile& a, const RightTile& b) {
    mma_tf32(small, a.at[0].small, a.at[1].small, a.at[2].small, a.at[3].small, b.at[0].large,
             b.at[1].large);
    mma_tf32(large, a.at[0].large, a.at[1].large, a.at[2].large, a.at[3].large, b.at[0].large,
             b.at[1].large);
    mma_tf32(small, a.at[0].large, a.at[1].large, a.at[2].large, a.at[3].large, b.at[0].small,
             b.at[1].small);
  }
  __device__ float value(int i) const { return large[i] + small[i]; }
};

// A row tile of `rows` over the 8 keys of a tile. They are taken in another order, in which the
// lanes have their values of S.
template <int kPitch>
__device__ LeftTile left_tile(const float (*rows)[kPitch], int t, int x) {
  const float2 upper = *reinterpret_cast<const float2*>(&rows[t][x]);
  const float2 lower = *reinterpret_cast<const float2*>(&rows[t + 8][x]);
  return {{cut_finite(upper.x), cut_finite(lower.x), cut_finite(upper.y), cut_finite(lower.y)}};
}

// Calls visit(row, column, value) for the lane's products.
using Products = PairSum[kTilesDown][kWidth / 8];
template <typename Shape, typename Visit>
__device__ void for_each_product(const Lane<Shape>& lane, const Products& products, Visit visit) {
#pragma unroll
  for (int m = 0; m < kTilesDown; ++m) {
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        visit(16 * m + lane.g + i / 2 * 8, lane.d0 + 8 * n + 2 * lane.q + i % 2,
              products[m][n].value(i));
      }
    }
  }
}

// K S and Q S over the warp's keys.
template <typename Shape>
__device__ void read_state(Shared<Shape>& s, const Set<Shape>& set, const Lane<Shape>& lane,
                           const State<Shape>& S) {
  Products held, read;
#pragma unroll
  for (int tile = 0; tile < Shape::kTiles; ++tile) {
    const int x = lane.x0 + 8 * tile + 2 * lane.q;
    RightTile state[kWidth / 8];
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
      state[n] = {{cut_finite(S.at[tile][2 * n]), cut_finite(S.at[tile][2 * n + 1])}};
    }
#pragma unroll
    for (int m = 0; m < kTilesDown; ++m) {
      const LeftTile k = left_tile(set.k, 16 * m + lane.g, x);
      const LeftTile q = left_tile(set.q, 16 * m + lane.g, x);
#pragma unroll
      for (int n = 0; n < kWidth / 8; ++n) {
        held[m][n].add(k, state[n]);
        read[m][n].add(q, state[n]);
      }
    }
  }
  for_each_product(lane, held, [&](int t, int d, float x) { s.held[lane.part][d][t] = x; });
  for_each_product(lane, read, [&](int t, int d, float x) { s.read[lane.part][t][d] = x; });
}

// sum_j M_tj x_j over a half of the rows, of kPairs times two columns, of which lane j of the
// column's half warp has x_j. kTriangle: of j <= t alone, so that what a later row holds, NaN too,
// stays out.
template <int kPairs>
struct HalfRows {
  float of[kPairs];
};
template <bool kTriangle, int kPairs>
__device__ HalfRows<kPairs> multiply_half(const float* M, const HalfRows<kPairs>& x, int t,
                                          int first_lane) {
  HalfRows<kPairs> sum = {};
#pragma unroll
  for (int j = 0; j < kDeltaHalf; j += 4) {
    const float4 four = *reinterpret_cast<const float4*>(M + j);
    const float weights[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const float value = __shfl_sync(0xffffffffu, x.of[pair], first_lane + j + i);
        if (!kTriangle || j + i <= t) sum.of[pair] = fmaf(weights[i], value, sum.of[pair]);
      }
    }
  }
  return sum;
}

// U of the warp's columns, of which a half warp has every other one, and a lane row t of each half.
template <typename Shape>
__device__ void replace_rows(Shared<Shape>& s, const Set<Shape>& set) {
  constexpr int kPairs = Shape::kColumns / Shape::kWarps / 2;
  static_assert(kWarpSize == 2 * kDeltaHalf);
  const int t = threadIdx.x % kDeltaHalf, first_lane = threadIdx.x % kWarpSize - t;
  const int d = static_cast<int>(threadIdx.x) / kDeltaHalf;
  const auto column = [&](int pair) { return d + pair * (Shape::kThreads / kDeltaHalf); };
  HalfRows<kPairs> upper, lower;
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    const auto missing = [&](int row) {
      float held = s.held[0][column(pair)][row];
#pragma unroll
      for (int part = 1; part < Shape::kParts; ++part) held += s.held[part][column(pair)][row];
      return fmaf(-set.weights.e[row], held, set.v[row][column(pair)]);
    };
    upper.of[pair] = missing(t);
    lower.of[pair] = missing(kDeltaHalf + t);
  }
  const float* const M = set.weights.M[kDeltaHalf + t];
  upper = multiply_half<true>(set.weights.M[t], upper, t, first_lane);
  const HalfRows<kPairs> known = multiply_half<false>(M, upper, t, first_lane);
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) lower.of[pair] -= known.of[pair];
  lower = multiply_half<true>(M + kDeltaHalf, lower, t, first_lane);
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    s.U[t][column(pair)] = upper.of[pair];
    s.U[kDeltaHalf + t][column(pair)] = lower.of[pair];
  }
}

// S after the block. ends_chunk: it is rounded as T.
template <typename T, typename Shape>
__device__ void advance_state(const Shared<Shape>& s, const Set<Shape>& set,
                              const Lane<Shape>& lane, bool ends_chunk, State<Shape>& S) {
  LeftTile u[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = 8 * step + lane.q + i / 2 * 4;
      u[step].at[i] = cut_finite(set.weights.w[j] * s.U[j][lane.d0 + lane.g + i % 2 * 8]);
    }
  }
  const float F = set.weights.F;
#pragma unroll
  for (int tile = 0; tile < Shape::kTiles; ++tile) {
    const int x = lane.x0 + 8 * tile + lane.g;
    TileSum sum;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int j = 8 * step + lane.q;
      sum.add(u[step], {{cut_finite(set.k[j][x]), cut_finite(set.k[j + 4][x])}});
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& value = S.at[tile][i];
      value = fmaf(F, value, sum.value(i));
      if (ends_chunk) value = rounded<T>(value);
    }
  }
}

// Outputs of the block's rows: a thread has kEach of a column. What a later row holds, NaN too,
// stays out.
template <typename Shape>
__device__ void put_outputs(const DeltaChunkArgs& a, const Shared<Shape>& s, const Set<Shape>& set,
                            const Coord& at, const RowBlock& rows) {
  constexpr int kEach = Shape::kEach;
  const int d = static_cast<int>(threadIdx.x) % Shape::kColumns;
  const int t0 = static_cast<int>(threadIdx.x) / Shape::kColumns * kEach;
  float o[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    float sum = s.read[0][t0 + i][d];
#pragma unroll
    for (int part = 1; part < Shape::kParts; ++part) sum += s.read[part][t0 + i][d];
    o[i] = set.weights.read[t0 + i] * sum;
  }
  // Adds row j to those from t0 + first on.
  const auto add = [&](int j, int first) {
    const float u = s.U[j][d];
#pragma unroll
    for (int i = 0; i < kEach; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(&set.weights.P[j][t0 + i]);
      if (i >= first) o[i] = fmaf(four.x, u, o[i]);
      if (i + 1 >= first) o[i + 1] = fmaf(four.y, u, o[i + 1]);
      if (i + 2 >= first) o[i + 2] = fmaf(four.z, u, o[i + 2]);
      if (i + 3 >= first) o[i + 3] = fmaf(four.w, u, o[i + 3]);
    }
  };
#pragma unroll 8
  for (int j = 0; j < t0; ++j) add(j, 0);
#pragma unroll
  for (int i = 0; i < kEach; ++i) add(t0 + i, i);
  if (d >= at.columns) return;
  const int64_t channel = static_cast<int64_t>(at.head) * a.DV + at.d0 + d;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int t = t0 + i;
    if (t < rows.L) a.o[static_cast<int64_t>(rows.first + t) * a.H * a.DV + channel] = o[i];
  }
}

template <typename T, typename Shape, bool kVector>
__global__ void __launch_bounds__(Shape::kThreads, 1) chunk_kernel(DeltaChunkArgs a, int tiles) {
  extern __shared__ float4 memory[];
  let_next_start();
  wait_for_previous();
  const int head = static_cast<int>(blockIdx.x) / tiles;
  const int d0 = static_cast<int>(blockIdx.x) % tiles * Shape::kColumns;
  const Coord at{head / a.H, head % a.H, d0, min(Shape::kColumns, a.DV - d0)};
  const auto rows_at = [&](int block) {
    return block < a.blocks
               ? row_block<kDeltaRows>(a.seqs, a.chunk, at.sequence, a.first_block + block)
               : RowBlock{0, 0};
  };
  RowBlock rows = rows_at(0);
  if (rows.L == 0) return;
  Shared<Shape>& s = *reinterpret_cast<Shared<Shape>*>(memory);
  load_block<kVector>(a, s.set[0], at, 0, rows);
  const Lane<Shape> lane;
  const int64_t state = static_cast<int64_t>(a.seqs.slot[at.sequence]) * a.H + at.head;
  T* const kept = values_of<T>(a.S) + state * a.DK * a.DV;
  State<Shape> S = {};
  S.for_each(a, at, lane, [&](float& value, int64_t place) { value = value_of(kept[place]); });

  for (int block = 0; rows.L > 0; ++block) {
    const Set<Shape>& set = s.set[block % 2];
    const RowBlock next = rows_at(block + 1);
    wait_for_copies();
    __syncthreads();  // and all are done with the other set, and with what was read
    load_block<kVector>(a, s.set[(block + 1) % 2], at, block + 1, next);
    read_state(s, set, lane, S);
    __syncthreads();
    replace_rows(s, set);
    __syncthreads();
    const int number = a.first_block + block;
    const bool ends_chunk = (number + 1) % blocks_of_chunk<kDeltaRows>(a.chunk) == 0;
    advance_state<T>(s, set, lane, ends_chunk, S);
    put_outputs(a, s, set, at, rows);
    rows = next;
  }
  S.for_each(a, at, lane, [&](float value, int64_t place) { kept[place] = kept_as<T>(value); });
}

template <typename T, typename Shape>
void launch_shape(const DeltaChunkArgs& args, Stream& stream) {
  const bool vector = whole_rows(args.q) && whole_rows(args.k) && whole_rows(args.v);
  const auto kernel = vector ? chunk_kernel<T, Shape, true> : chunk_kernel<T, Shape, false>;
  constexpr size_t kBytes = sizeof(Shared<Shape>);
  use(stream);
  abort_if_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(kBytes)),
                  "delta_rule, chunks");
  const int tiles = ceil_div(args.DV, Shape::kColumns);
  launch_early(stream, "delta_rule, chunks", kernel,
               {.grid = static_cast<unsigned>(args.seqs.num_seqs * args.H * tiles),
                .threads = Shape::kThreads,
                .shared = kBytes},
               args, tiles);
}

void run_blocks(const DeltaChunkArgs& args, Stream& stream) {
  with_state_type(args.S.dtype, [&](auto element) {
    using T = decltype(element);
    if (args.DK <= Narrow::kKeys) return launch_shape<T, Narrow>(args, stream);
    if (args.DK <= Middle::kKeys) return launch_shape<T, Middle>(args, stream);
    launch_shape<T, Wide>(args, stream);
  });
}

size_t bytes_of_block(const DeltaRuleArgs& a) {
  return sizeof(DeltaBlock) * static_cast<size_t>(a.H);
}

size_t shared_bytes(int DK) {
  if (DK <= Narrow::kKeys) return sizeof(Shared<Narrow>);
  return DK <= Middle::kKeys ? sizeof(Shared<Middle>) : sizeof(Shared<Wide>);
}

}  // namespace

bool takes_delta_chunks(const DeltaRuleArgs& a, size_t shared_memory) {
  const auto of_chunk = static_cast<size_t>(blocks_of_chunk<kDeltaRows>(a.chunk));
  return a.chunk > 1 && a.decay != DeltaDecay::kChannel && a.DK <= Wide::kKeys &&
         shared_bytes(a.DK) <= shared_memory && bytes_of_block(a) * of_chunk <= kScratchBytes;
}

void delta_rule_chunks(const DeltaRuleArgs& args, Stream& stream) {
  const std::span<std::byte> scratch = static_cast<CudaStream&>(stream).scratch();
  const auto launch = [&](const Ragged& seqs, int first_block, int blocks) {
    DeltaRuleArgs part = args;
    part.seqs = seqs;
    auto* const weights = reinterpret_cast<DeltaBlock*>(scratch.data());
    weigh_delta_blocks(part, first_block, blocks, weights, stream);
    const int each = args.H / args.HK;
    run_blocks({.seqs = seqs,
                .H = args.H,
                .DK = args.DK,
                .DV = args.DV,
                .chunk = args.chunk,
                .first_block = first_block,
                .blocks = blocks,
                .weights = weights,
                .q = {args.q, args.q_stride, each, args.DK},
                .k = {args.k, args.k_stride, each, args.DK},
                .v = {args.v, args.v_stride, 1, args.DV},
                .S = args.S,
                .o = args.o},
               stream);
  };
  for_each_wave<kDeltaRows>(args.seqs, args.chunk, bytes_of_block(args), scratch.size(), launch);
}

}  // namespace recurve::cuda::sm80
