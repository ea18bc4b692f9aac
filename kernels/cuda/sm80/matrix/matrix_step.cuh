#pragma once
#include <type_traits>

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/matrix/chunks.cuh"
#include "kernels/cuda/sm80/vector.cuh"

// The step form of recurrences whose state is a matrix (DK, DV) a head, for a row
//   S' = F S + k v^T      o = q S' / divisor
// with F, k and q of each key channel. A Cell says what these are:
//   a                           the op's arguments, with seqs, chunk, H, DK and DV
//   ShapeOfMany<T>              the StepShape for many sequences
//   state(), z()                StateData S; float* (slots, H, DK) normaliser state, or null
//   v(row, head), o(row, head)  float* (DV)
//   Scalars start(state)        of a head, before its first row; state: slot H + head
//   Scalars next(before, row, head)
//   KeyWeights weights(scalars, row, head, key)
//   float divisor(scalars, qz)  with qz the sum of q z' where z() is given, z' = F z + k
//   unsigned* done              counters, one for each head of each sequence, or null
//   end(rows, head, state, scalars, z)  what is left when o is there, by one block that has the
//                               scalars and z of the last row; where `done` is given
//   kClusters, clusters()       whether blocks of a head may be a cluster, which ends a row with
//   Ahead ahead(row, head, d)   what a thread reads for that of column d, and
//   end_in_cluster(place, scalars, z, own, ahead)  by all: o is in their shared memory alone
namespace recurve::cuda::sm80 {

struct KeyWeights {
  float F, k, q, unused;
};

// What a block of a cluster has: some columns of a row's head.
struct ClusterCoord {
  int64_t row;
  int head;
  int64_t state;  // of the head, as in start()
  int rank;       // in the cluster: of the block's columns
  int columns;    // of each block
};

// z' of a key channel, rounded alike by all kernels.
__device__ inline float advance(const KeyWeights& w, float z) { return __fmaf_rn(w.F, z, w.k); }

__device__ inline void advance(float& S, float& o, const KeyWeights& w, float v) {
  S = __fmaf_rn(w.F, S, __fmul_rn(w.k, v));
  o = __fmaf_rn(w.q, S, o);
}

// How a block stands: its columns are side by side, 16 bytes a thread; the threads above each other
// have every kGroups-th key, of which they hold kHeld at a time. Fewer columns cost bandwidth. The
// order of the sums follows from the number of threads alone, so that shapes may take turns.
template <typename T, int kHeldKeys, int kBlocksAtOnce>
struct StepShape {
  static constexpr int kThreads = 256, kHeld = kHeldKeys, kBlocks = kBlocksAtOnce;
  static constexpr int kQuads = sizeof(float) / sizeof(T);  // of values, a thread
  static constexpr int kWidth = 16;
  static constexpr int kColumns = 4 * kQuads * kWidth;
  static constexpr int kGroups = kThreads / kWidth;
  static constexpr int kSlab = kHeld * kGroups;
  static constexpr int kWarps = kThreads / kWarpSize;
};

// What a thread has of a row of S, as it is kept: 16 bytes.
template <typename T>
struct Held {
  static constexpr int kQuads = sizeof(float) / sizeof(T);
  Four<T> quad[kQuads];
};

// kVector: rows of S begin at multiples of 16 bytes, and all columns or none are there. kOutgrown:
// of states that outgrow the cache; all are there.
template <bool kVector, bool kOutgrown, typename T>
__device__ Held<T> load_held(const T* from, int columns) {
  Held<T> held;
  if constexpr (kOutgrown) {
    load_outgrown(reinterpret_cast<uint4&>(held), from);
  } else if constexpr (kVector) {
    const uint4 all = columns > 0 ? load_16_bytes(from) : uint4();
    held = reinterpret_cast<const Held<T>&>(all);
  } else {
#pragma unroll
    for (int i = 0; i < Held<T>::kQuads; ++i) {
      held.quad[i] = load_four<false>(from + 4 * i, columns - 4 * i);
    }
  }
  return held;
}
template <bool kVector, bool kOutgrown, typename T>
__device__ void store_held(T* to, const Held<T>& held, int columns) {
  if constexpr (kOutgrown) {
    store_outgrown(to, reinterpret_cast<const uint4&>(held));
  } else if constexpr (kVector) {
    if (columns > 0) __stcs(reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4&>(held));
  } else {
#pragma unroll
    for (int i = 0; i < Held<T>::kQuads; ++i) {
      store_four<false>(to + 4 * i, held.quad[i], columns - 4 * i);
    }
  }
}

// A block: some columns of S of one head of one sequence. The state is on its way while the weights
// are computed, and where a key is done the next takes its place. kWhole: the keys are a multiple
// of those that a block holds, and it has all its columns. kClustered: the blocks of a head are a
// cluster, and sequences have one row.
template <typename T, typename Shape, bool kVector, bool kWhole, bool kOutgrown, bool kClustered,
          typename Cell>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    matrix_step_kernel(Cell cell, int tiles) {
  constexpr int kQuads = Shape::kQuads;
  extern __shared__ float4 shared[];  // weights of the keys: (DK); z: (DK) floats
  __shared__ float own[kClustered ? Shape::kColumns : 1];  // of o
  __shared__ float4 sums[Shape::kWarps][kQuads * Shape::kWidth];
  const auto& a = cell.a;
  const int tile = blockIdx.x % tiles, head = blockIdx.x / tiles % a.H;
  const int sequence = blockIdx.x / tiles / a.H;
  const int64_t state = static_cast<int64_t>(a.seqs.slot[sequence]) * a.H + head;
  T* const tile_of_S = values_of<T>(cell.state()) + state * a.DK * a.DV + tile * Shape::kColumns;
  wait_for_previous();
  let_next_start();
  const StepRows rows = step_rows(a.seqs, a.chunk, sequence);
  if (rows.first == rows.end) return;

  const int group = static_cast<int>(threadIdx.x) / Shape::kWidth;
  const int d = static_cast<int>(threadIdx.x) % Shape::kWidth * 4 * kQuads;
  const int columns = kWhole ? 4 * kQuads : a.DV - tile * Shape::kColumns - d;
  T* const first = tile_of_S + static_cast<int64_t>(group) * a.DV + d;  // of this thread's keys
  const int64_t step = static_cast<int64_t>(Shape::kGroups) * a.DV;     // to the next of them
  [[maybe_unused]] typename Cell::Ahead ahead{};
  if constexpr (kClustered) {
    const int column = tile * Shape::kColumns + static_cast<int>(threadIdx.x);
    if (threadIdx.x < Shape::kColumns) ahead = cell.ahead(rows.first, head, column);
  }
  Held<T> held[Shape::kHeld];
  const auto load_first = [&] {
    const T* from = first;
#pragma unroll
    for (int j = 0; j < Shape::kHeld; ++j, from += step) {
      const bool there = kWhole || j * Shape::kGroups + group < a.DK;
      if (there) held[j] = load_held<kVector, kOutgrown>(from, columns);
    }
  };
  load_first();
  auto* const weights = reinterpret_cast<KeyWeights*>(shared);
  float* const z = reinterpret_cast<float*>(shared + a.DK);
  auto scalars = cell.start(state);
  if (cell.z() != nullptr) {
    for (int x = threadIdx.x; x < a.DK; x += Shape::kThreads) z[x] = cell.z()[state * a.DK + x];
  }

  for (int64_t row = rows.first; row < rows.end; ++row) {
    scalars = cell.next(scalars, row, head);
    float qz = 0;
    for (int x = threadIdx.x; x < a.DK; x += Shape::kThreads) {
      const KeyWeights w = cell.weights(scalars, row, head, x);
      weights[x] = w;
      if (cell.z() == nullptr) continue;
      z[x] = advance(w, z[x]);
      qz = fmaf(w.q, z[x], qz);
    }
    if (cell.z() != nullptr) qz = block_sum<Shape::kThreads>(qz);
    float4 v[kQuads], o[kQuads];
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      v[i] = load4<false>(cell.v(row, head) + tile * Shape::kColumns + d + 4 * i, columns - 4 * i);
      o[i] = make_float4(0, 0, 0, 0);
    }
    __syncthreads();

    T* S = first;
    for (int base = 0; base < a.DK; base += Shape::kSlab) {
#pragma unroll
      for (int j = 0; j < Shape::kHeld; ++j, S += step) {
        const int x = base + j * Shape::kGroups + group, after = base + Shape::kSlab;
        if (!kWhole && x >= a.DK) break;
        const KeyWeights w = weights[x];
#pragma unroll
        for (int i = 0; i < kQuads; ++i) {
          float4 values = widened(held[j].quad[i]);
          advance(values.x, o[i].x, w, v[i].x);
          advance(values.y, o[i].y, w, v[i].y);
          advance(values.z, o[i].z, w, v[i].z);
          advance(values.w, o[i].w, w, v[i].w);
          held[j].quad[i] = four_of<T>(values);
        }
        store_held<kVector, kOutgrown>(S, held[j], columns);
        const bool more = kWhole ? after < a.DK : x + Shape::kSlab < a.DK;
        if (more) held[j] = load_held<kVector, kOutgrown>(S + Shape::kHeld * step, columns);
      }
    }
    if (row + 1 < rows.end && a.DK > Shape::kSlab) load_first();

    // The groups of a warp, then the warps.
    const int lane = threadIdx.x % kWarpSize;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      static_assert(2 * Shape::kWidth == kWarpSize);
      o[i].x += __shfl_xor_sync(0xffffffffu, o[i].x, Shape::kWidth);
      o[i].y += __shfl_xor_sync(0xffffffffu, o[i].y, Shape::kWidth);
      o[i].z += __shfl_xor_sync(0xffffffffu, o[i].z, Shape::kWidth);
      o[i].w += __shfl_xor_sync(0xffffffffu, o[i].w, Shape::kWidth);
      if (lane < Shape::kWidth) sums[threadIdx.x / kWarpSize][lane * kQuads + i] = o[i];
    }
    __syncthreads();
    const int column = tile * Shape::kColumns + static_cast<int>(threadIdx.x);
    if (threadIdx.x < Shape::kColumns && column < a.DV) {
      const float* parts = reinterpret_cast<const float*>(sums) + threadIdx.x;
      float sum = parts[0];
      for (int warp = 1; warp < Shape::kWarps; ++warp) sum += parts[warp * Shape::kColumns];
      if (cell.z() != nullptr) sum /= cell.divisor(scalars, qz);
      if constexpr (kClustered) {
        own[threadIdx.x] = sum;
      } else {
        cell.o(row, head)[column] = sum;
      }
    }
    if constexpr (kClustered) {
      sync_cluster();
      cell.end_in_cluster({row, head, state, tile, Shape::kColumns}, scalars, z, own, ahead);
      leave_cluster();
      return;
    }
    __syncthreads();  // before the next row's
  }
  if (cell.done == nullptr) return;
  if (!is_last_block(cell.done + sequence * a.H + head, tiles)) return;
  cell.end(rows, head, state, scalars, z);
}

constexpr int kMostInCluster = 8;  // blocks, on any GPU that has clusters

// kClusters: whether blocks of a head may be one.
template <typename T, typename Shape, bool kClusters, typename Cell>
void launch_matrix_steps(const char* op, const Cell& cell, Stream& stream) {
  // Sequences: more clusters wait for resources longer than they save at their ends, as measured.
  constexpr int kMostClustered = 3;
  const auto& a = cell.a;
  const int tiles = ceil_div(a.DV, Shape::kColumns), blocks = a.seqs.num_seqs * a.H * tiles;
  // Percent: what several blocks need. Where all of them run at once more is won by the kernels
  // around them running concurrently, if what comes next is not in this one.
  const int at_once = Shape::kBlocks * static_cast<CudaStream&>(stream).multiprocessors();
  const bool concurrent = cell.done == nullptr && blocks <= at_once;
  const int carveout = concurrent ? cudaSharedmemCarveoutMaxShared : 25;
  const bool vector = a.DV % (4 * Shape::kQuads) == 0;
  auto kernel = vector ? matrix_step_kernel<T, Shape, true, false, false, false, Cell>
                       : matrix_step_kernel<T, Shape, false, false, false, false, Cell>;
  bool clustered = false;
  if (a.DK % Shape::kSlab == 0 && a.DV % Shape::kColumns == 0) {
    const int64_t values = int64_t{a.seqs.num_seqs} * a.H * a.DK * a.DV;
    kernel = outgrows_cache<T>(values)
                 ? matrix_step_kernel<T, Shape, true, true, true, false, Cell>
                 : matrix_step_kernel<T, Shape, true, true, false, false, Cell>;
    if constexpr (kClusters) {
      clustered = cell.clusters() && tiles <= kMostInCluster && a.seqs.max_len == 1 &&
                  a.seqs.num_seqs <= kMostClustered &&
                  static_cast<CudaStream&>(stream).has_clusters();
      if (clustered) kernel = matrix_step_kernel<T, Shape, true, true, false, true, Cell>;
    }
  }
  launch_early(stream, op, kernel,
               {.grid = static_cast<unsigned>(blocks),
                .threads = Shape::kThreads,
                .shared = (sizeof(KeyWeights) + sizeof(float)) * static_cast<size_t>(a.DK),
                .cluster = clustered ? static_cast<unsigned>(tiles) : 1,
                .carveout = carveout},
               cell, tiles);
}

template <typename Cell>
void matrix_steps(const char* op, const Cell& cell, Stream& stream) {
  constexpr int kMany = 16;  // sequences
  with_state_type(cell.state().dtype, [&](auto element) {
    using T = decltype(element);
    if (cell.a.seqs.num_seqs >= kMany) {
      launch_matrix_steps<T, typename Cell::template ShapeOfMany<T>, false>(op, cell, stream);
    } else {
      constexpr bool kFp32 = std::is_same_v<T, float>;  // with bf16 it saves nothing
      launch_matrix_steps<T, StepShape<T, 16, 2>, kFp32 && Cell::kClusters>(op, cell, stream);
    }
  });
}

}  // namespace recurve::cuda::sm80
