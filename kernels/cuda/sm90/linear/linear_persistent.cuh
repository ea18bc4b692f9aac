#pragma once
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/sm90/linear/linear_persistent_finish.cuh"

// y = x W^T of many rows, where products are what takes time: blocks that stay on their
// multiprocessor and make one tile of y after the other, with the same bits as the blocks of
// linear_kernel.cuh.
//
// One thread brings the boxes of all of a block's tiles, without a break between them. Two
// warpgroups multiply, each half of a tile's rows of x, and each goes on by itself.
namespace recurve::cuda::sm90 {

// Tiles of 128 rows of x by TileM rows of W, which are the columns of the products, with K in up to
// MostPieces pieces. A warpgroup has registers for the sums of 128 columns of three pieces: more
// are halved, and the sums of the first half wait in shared memory, where the ends of tiles go
// through at other times.
template <int TileM, int MostPieces>
struct PersistentTiling : WideTiling<TileM, kPersistentRows> {
  static constexpr int kMostPieces = MostPieces;
  static constexpr bool kHalves = MostPieces > 4;
  static_assert(MostPieces <= 2 || TileM <= 128);
  static constexpr int kGroupBytes =
      kHalves ? sizeof(float) * kGroupM * TileM : static_cast<int>(sizeof(Staged));
  static_assert(kGroupBytes >= static_cast<int>(sizeof(Staged)));
  static constexpr int kStageBytes = (TileM + PersistentTiling::kRows) * kBoxBytes;
  static constexpr int kRestBytes = sizeof(Barriers) + 2 * kGroupBytes;
  static constexpr int kStages = std::min(kMostStages, ((227 << 10) - kRestBytes) / kStageBytes);
  static constexpr int kShared = kStages * kStageBytes + kRestBytes;
  static_assert(kStages > 2);
};

struct PersistentParams {
  int box_rows, box_offset, tile_step;  // as in LinearParams
  int boxes, piece_boxes, pieces;       // of K
  int columns;                          // tiles side by side along W
  int row_tiles;                        // and along x: those of a cluster count as one
  int band;     // so many of row_tiles are gone through together, for the L2 cache's sake
  int sharers;  // blocks of a cluster, which have the same rows of W: 1 or 2
  bool made;    // W is written by the kernel before this one
  Outputs outputs;

  __host__ __device__ int tiles() const { return columns * row_tiles; }
};

// The part of a cluster's tile that this block has: its first rows.
struct Tile {
  int W_row, x_row;
};
template <typename T>
__device__ Tile tile_of(const PersistentParams& params, int number) {
  const int band_tiles = params.band * params.columns, band = number / band_tiles;
  const int in_band = number - band * band_tiles;
  const int height = min(params.band, params.row_tiles - band * params.band);
  const int row = band * params.band + in_band % height;
  const int rank = params.sharers > 1 ? rank_in_cluster() : 0;
  return {.W_row = in_band / height * params.tile_step,
          .x_row = (row * params.sharers + rank) * T::kRows};
}
// Calls f with this block's tiles in turn.
template <typename T, typename F>
__device__ void for_each_tile(const PersistentParams& params, F f) {
  const int clusters = static_cast<int>(gridDim.x) / params.sharers;
  for (int number = cluster_number(); number < params.tiles(); number += clusters) {
    f(tile_of<T>(params, number));
  }
}

// A block's memory: stages, each with its part of W and behind it that of x, the memory of each
// warpgroup, and the barriers.
template <typename T>
struct Ring {
  std::byte* memory;
  __device__ std::byte* W(int stage) const { return memory + stage * T::kStageBytes; }
  __device__ std::byte* x(int stage) const { return W(stage) + T::kTileM * kBoxBytes; }
  __device__ std::byte* of_group(int group) const {
    return memory + T::kStages * T::kStageBytes + group * T::kGroupBytes;
  }
  __device__ Staged& staged(int group) const { return *reinterpret_cast<Staged*>(of_group(group)); }
  __device__ Barriers& barriers() const {
    return *reinterpret_cast<Barriers*>(of_group(T::kGroups));
  }
};

// What brings the boxes of all tiles. The first weights do not wait for the kernel before this one.
// Two blocks that share them load a box each, for both.
template <typename T>
struct TileLoader {
  const Ring<T>& ring;
  const CUtensorMap &W, &x;
  const PersistentParams& params;

  __device__ void run() const {
    RingStage stage;
    bool begun = false;
    for_each_tile<T>(params, [&](const Tile& tile) {
      const int ahead = begun || params.made ? 0 : min(params.boxes, T::kStages);
      for (int i = 0; i < ahead; ++i) load_weights(tile, i, i);
      if (!begun) wait_for_previous();
      begun = true;
      for (int i = 0; i < params.boxes; ++i, stage.next(T::kStages)) {
        if (i >= ahead) {
          // This phase of a stage that has not been used yet counts as ended.
          wait(&ring.barriers().empty[stage.index], stage.parity ^ 1);
          load_weights(tile, i, stage.index);
        }
        load_box(ring.x(stage.index), x, i * kBoxK, tile.x_row, &ring.barriers().full[stage.index],
                 Keep::kNormal);
      }
    });
  }

 private:
  __device__ void load_weights(const Tile& tile, int i, int stage) const {
    Barrier* full = &ring.barriers().full[stage];
    const int k = i * kBoxK;
    arrive_expecting(full, (2 * params.box_rows + T::kRows) * kBoxBytes);
    if (params.sharers == 2) {
      const int half = rank_in_cluster();
      load_box(ring.W(stage) + half * params.box_rows * kBoxBytes, W, k,
               tile.W_row + half * params.box_offset, full, Keep::kNormal, uint16_t{3});
      return;
    }
    load_box(ring.W(stage), W, k, tile.W_row, full, Keep::kNormal);
    load_box(ring.W(stage) + params.box_rows * kBoxBytes, W, k, tile.W_row + params.box_offset,
             full, Keep::kNormal);
  }
};

// A warpgroup. What it has of a tile stays in registers while the first piece of the next tile is
// summed up, and is written meanwhile.
template <typename T>
struct Computer {
  const Ring<T>& ring;
  const PersistentParams& params;
  const int group;
  RingStage stage = {}, done = {};

  __device__ void run() {
    TileEnd<T> end{params.outputs, ring.staged(group), group};
    Accumulator<T> sums;
    for_each_tile<T>(params, [&](const Tile& tile) {
      Accumulator<T> piece;
      add_while_ending(piece, end, sums);
      const RowScales scales(params.outputs, tile.x_row + row());
      if constexpr (T::kMostPieces > 2) {
        add_pieces(piece);
        scales.scale(piece, sums);
      } else if (params.pieces > 1) {
        Accumulator<T> second;
        add_piece(second, last_boxes());
        scales.scale_sum(piece, second, sums);
      } else {
        scales.scale(piece, sums);
      }
      end.begin(tile.x_row + row(), tile.W_row);
    });
    while (!end.done()) end.write_next(sums);
  }

 private:
  __device__ int row() const { return group * (T::kRows / T::kGroups); }

  // The first piece, and the end of the tile before.
  __device__ void add_while_ending(Accumulator<T>& piece, TileEnd<T>& end,
                                   const Accumulator<T>& sums) {
    const int boxes = params.piece_boxes, every = max(1, boxes / TileEnd<T>::kChunks);
    int next = 0;
    add_box(piece, true);
    for (int i = 1; i < boxes; ++i) {
      if (i > next && !end.done()) {
        end.write_next(sums);
        next += every;
      }
      add_next_box(piece);
    }
    finish_products();
    while (!end.done()) end.write_next(sums);
  }

  // Boxes of the last piece.
  __device__ int last_boxes() const {
    return params.boxes - (params.pieces - 1) * params.piece_boxes;
  }

  // All pieces behind the first, which is in sums: by twos, then these by twos, and so on, as
  // blocks do that have a piece each.
  __device__ void add_pieces(Accumulator<T>& sums) {
    if constexpr (T::kHalves) {
      add_three(sums, params.piece_boxes);
      put_aside(sums);
      add_piece(sums, params.piece_boxes);
    }
    add_three(sums, last_boxes());
    if constexpr (T::kHalves) add_to_aside(sums);
  }
  // Those behind the first of four.
  __device__ void add_three(Accumulator<T>& sums, int last_boxes) {
    Accumulator<T> second;
    add_piece(second, params.piece_boxes);
    sums += second;
    add_piece(second, params.piece_boxes);
    Accumulator<T> third;
    add_piece(third, last_boxes);
    second += third;
    sums += second;
  }
  // A thread's own place in shared memory. The ends of tiles, which others read there, are at least
  // a piece away: warps are never further apart than the ring has stages.
  __device__ float4* aside() const {
    return reinterpret_cast<float4*>(ring.of_group(group)) + threadIdx.x % kGroupThreads;
  }
  __device__ void put_aside(const Accumulator<T>& sums) const {
#pragma unroll
    for (int i = 0; i < T::kTileM / 8; ++i) {
      const float* four = &sums.parts[0][4 * i];
      aside()[i * kGroupThreads] = make_float4(four[0], four[1], four[2], four[3]);
    }
  }
  __device__ void add_to_aside(Accumulator<T>& sums) const {
#pragma unroll
    for (int i = 0; i < T::kTileM / 8; ++i) {
      const float4 four = aside()[i * kGroupThreads];
      float* to = &sums.parts[0][4 * i];
      to[0] = four.x + to[0];
      to[1] = four.y + to[1];
      to[2] = four.z + to[2];
      to[3] = four.w + to[3];
    }
  }

  __device__ void add_piece(Accumulator<T>& piece, int boxes) {
    add_box(piece, true);
    for (int i = 1; i < boxes; ++i) add_next_box(piece);
    finish_products();
  }

  __device__ void add_box(Accumulator<T>& piece, bool first) {
    // This waits without end: if no box comes, it is the thread that brings them that gives up.
    while (!phase_ended(&ring.barriers().full[stage.index], stage.parity)) {
    }
    begin_products();
    piece.add(ring.W(stage.index), ring.x(stage.index), row(), first);
    commit_products();
    stage.next(T::kStages);
  }
  // Releases the stage of the box before.
  __device__ void add_next_box(Accumulator<T>& piece) {
    add_box(piece, false);
    wait_for_products<1>();
    release();
  }
  __device__ void finish_products() {
    wait_for_products<0>();
    release();
  }
  __device__ void release() {
    const int lane = threadIdx.x % kWarpSize;
    Barrier* empty = &ring.barriers().empty[done.index];
    if (lane == 0) arrive(empty);
    if (lane == 1 && params.sharers == 2) arrive(empty, rank_in_cluster() ^ 1);
    done.next(T::kStages);
  }
};

template <typename T>
__global__ void __maxnreg__(T::kMostRegisters)
    persistent_kernel(const __grid_constant__ CUtensorMap W, const __grid_constant__ CUtensorMap x,
                      const __grid_constant__ PersistentParams params) {
  extern __shared__ __align__(1024) std::byte memory[];
  const Ring<T> ring{memory};
  if (threadIdx.x == T::kComputing) {
    prefetch_map(W);
    prefetch_map(x);
    for (int s = 0; s < T::kStages; ++s) {
      init_barrier(&ring.barriers().full[s], 1);
      init_barrier(&ring.barriers().empty[s], params.sharers * T::kComputing / kWarpSize);
    }
    publish_barriers();
  }
  __syncthreads();
  if (params.sharers > 1) sync_cluster();  // its barriers are there

  // This is the same for a whole warp, which the compiler has to see.
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / kGroupThreads, 0);
  if (group < T::kGroups) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(T::kRegisters));
    wait_for_previous();
    let_next_start();
    Computer<T>{ring, params, group}.run();
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(T::kLoadRegisters));
    if (threadIdx.x == T::kComputing) TileLoader<T>{ring, W, x, params}.run();
    __syncwarp();
  }
  // No block goes while the other loads what they share, or says that it is used.
  if (params.sharers > 1) leave_cluster();
}

}  // namespace recurve::cuda::sm90
