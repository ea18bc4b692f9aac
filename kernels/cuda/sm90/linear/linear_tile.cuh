#pragma once
#include <algorithm>

#include "kernels/ceil_div.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm90/async.cuh"
#include "kernels/cuda/sm90/capabilities.h"
#include "kernels/cuda/sm90/linear/linear_plan.h"
#include "kernels/cuda/sm90/ops.h"
#include "kernels/cuda/sm90/tensor_map.h"
#include "kernels/ops/linear.h"

// How a linear layer is laid out over blocks: see linear_kernel.cuh.
namespace recurve::cuda::sm90 {

constexpr int kBoxBytes = 2 * kBoxK;  // of a row in bf16, in a box
constexpr int kGroupThreads = 128;    // of a warpgroup

using sm80::aligned;

// The most registers of a thread with which blocks fit one multiprocessor: it has four
// parts, each with 512 of them for every lane of its warps.
constexpr int even_share(int threads, int blocks) {
  const int warps = ceil_div(threads / kWarpSize * blocks, 4);  // of a part
  return 512 / warps / 8 * 8;
}

// Tilings for so few rows that a thread ends one of them at most, and every block finds the scales
// of a deferred norm.
constexpr int kFewRows = 8;

// Those of kernels that end with what adapters add: about as many as the others need, as what they
// leave is where the next kernel's blocks begin.
constexpr int adapted_registers(int rows, int blocks) {
  if (blocks == 1) return 104;
  return rows <= kFewRows ? 112 : 88;
}

// How a kernel takes W: in bf16, from shared memory. linear_held.cuh has the other kinds.
struct PlainWeights {
  static constexpr bool kHeld = false;         // in registers, where it is unpacked
  static constexpr int kRowBytes = kBoxBytes;  // of a row, in a box
  static constexpr int kStep = kBoxK;          // from box to box, in values of the tensor map
  static constexpr int kMostSpan = 1;          // boxes of K side by side in a stage
};

// What a kernel is made for: tiles of up to 64 Groups rows of W by up to Rows rows of x, Blocks of
// them on one multiprocessor. A block makes up to kMostTurns pieces of K in turn, where there are
// registers for as many sums: they need not go from block to block.
template <int Groups, int Rows, int Blocks, typename WeightsOf = PlainWeights>
struct Tiling {
  using Weights = WeightsOf;
  // Where rows are few the stages have memory for copies of whole lines of W.
  static constexpr int kSpan = Rows <= 16 ? Weights::kMostSpan : 1;
  static constexpr int kGroups = Groups, kRows = Rows, kBlocks = Blocks;
  static constexpr int kXBoxBytes = kRows * kBoxBytes;  // at most
  static constexpr int kTileM = kGroups * kGroupM;
  static constexpr int kComputing = kGroups * kGroupThreads;
  // Sums of more rows need more registers than an even share, as in wide tilings.
  static constexpr bool kTrades = Rows > 128;
  static constexpr int kThreads = kComputing + (kTrades ? kGroupThreads : kWarpSize);
  // Where rows are few there are fewer, so that a block fits with those of a step: as
  // measured.
  static constexpr int kMostRegisters =
      Groups == 1 && Rows <= kFewRows ? 112 : even_share(kThreads, Blocks);
  static constexpr int kAdaptedRegisters =
      Weights::kHeld ? kMostRegisters : std::min(kMostRegisters, adapted_registers(Rows, Blocks));
  static constexpr int kRegisters = 240, kLoadRegisters = 24;
  static constexpr bool kWide = false;
  static constexpr int kMostTurns = narrow_tiling(Groups, Rows, Blocks).most_turns();
};

// What a kernel for many rows is made for: tiles of up to TileM rows of W by up to Rows rows of x.
// The rows of W are the columns of the products, so tiles can have the height that divides a layer
// best among all multiprocessors.
template <int TileM, int Rows>
struct WideTiling {
  using Weights = PlainWeights;
  static constexpr int kSpan = 1;
  static constexpr int kGroups = 2, kRows = Rows, kBlocks = 1;
  static constexpr int kTileM = TileM;
  static constexpr int kComputing = kGroups * kGroupThreads;
  static constexpr bool kWide = true, kTrades = true;
  static constexpr int kMostTurns = wide_tiling(TileM, Rows).most_turns();
  // The sums need more registers than an even share: a third group, of which one thread has work,
  // gives up its own.
  static constexpr int kThreads = kComputing + kGroupThreads;
  static constexpr int kMostRegisters = even_share(kThreads, kBlocks);
  static constexpr int kRegisters = 240, kLoadRegisters = 24;
};

// Rows of x as they are multiplied. Where a norm is still to be scaled, with what it takes: the
// scales, or the squares as DeferredRmsNorm has them.
struct Rows {
  const uint16_t* x;  // (rows, K)
  const float* scales = nullptr;
  const float* squares = nullptr;
  float* found = nullptr;  // of squares: the scales, once they are known
  bool made = false;       // by a kernel of this layer
};

template <typename T>
constexpr bool kIsForFew = T::kRows <= kFewRows;
// Tilings that take and leave deferred norms.
template <typename T>
constexpr bool kDefersNorms = !T::kWide && T::kRows <= kMostRowsOfDeferredNorm;
// Those of them whose blocks each find some of the scales, and note them for all.
template <typename T>
constexpr bool kNotesScales = kDefersNorms<T> && !kIsForFew<T>;

// Tilings whose blocks pace themselves as they begin: they ask for weights once earlier ones have
// come, and apart from them for the rows that go with these. More rows take too long to come for
// all of these to be waited for, so each box comes with its weights.
constexpr int kMostPacedRows = 32;
template <typename T>
constexpr bool kPaced = !T::kWide && T::kRows <= kMostPacedRows;

// Packed weights of so few rows are multiplied by each warp for itself, as wgmma waits for four.
// Boxes of x have all rows of the tiling then, so that a lane finds its own at the same place of
// each.
template <typename T>
constexpr bool kByWarps = T::kRows <= 16 && T::Weights::kHeld;

// The sums of squares of a row, as DeferredRmsNorm has them, of which a lane holds kHeld on their
// way. All kernels add them in this order.
template <int kHeld>
struct RowSquares {
  float held[kHeld];

  __device__ void load(const float* squares, int K) {
    const int lane = threadIdx.x % kWarpSize, sums = K / DeferredRmsNorm::kSquares;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = j * kWarpSize + lane;
      held[j] = i < sums ? squares[i] : 0;
    }
  }
  // The scale of the row. All lanes.
  __device__ float scale(const float* squares, int K, float eps) const {
    const int lane = threadIdx.x % kWarpSize, sums = K / DeferredRmsNorm::kSquares;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) sum += held[j];
    for (int i = kHeld * kWarpSize + lane; i < sums; i += kWarpSize) sum += squares[i];
    return norm_scale(warp_sum(sum), K, eps);
  }
};

// What adapters add to the layer: see linear_lora.cuh.
struct JoinedLora {
  const std::byte* table = nullptr;  // what shrink has left, or null: nothing is added
  int table_bytes = 0, parts, tiles;
  int stride;             // floats of a row of A x, and
  const float* inner;     // the first row
  uint64_t rows;          // a bit for each that has an adapter
  const uint32_t* ready;  // LoraArgs::ready, or null where another kernel makes the rows
};

// What a launch knows in addition to the tensor maps. A tile has two boxes of rows of W, side by
// side in shared memory; they come in one copy where they are side by side in W and not shared.
struct LinearParams {
  int rows;
  int outputs;
  int stages;           // of the ring
  int box_rows;         // of W; a multiple of 4, in wide tilings of 8
  int span;             // boxes of K of a stage, side by side
  int W_row_bytes;      // of a row of W, in a stage
  int tile_step;        // rows of W from the first box of a tile to that of the next tile
  int box_offset;       // and from a tile's first box to its second
  int x_rows;           // of a tile; in wide tilings a multiple of 8
  int boxes;            // of K
  int piece_boxes;      // of them, in a piece of K
  int turns;            // pieces that a block makes
  int parts;            // of K, each made by a block: those of one tile are side by side
  int sharers;          // tiles of a cluster, with the same rows of W: 1, or in wide tilings 2
  bool swiglu, vector;  // vector: rows of y, bias and residual begin at multiples of 16 bytes
  float soft_cap;
  int K;
  float norm_eps;
  const void* W_scales;  // of W that is packed, (W_rows, boxes)
  int W_rows;            // N
  int scale_bytes;       // of W that is packed, of few rows: what a warp has of them
  const float* scales;   // of rows of x: see Rows
  const float* squares;  // of rows of x, where the norm was deferred, and
  float* found;          // the scales that blocks find for all
  const float* bias;
  const float* residual;
  float* y;
  uint16_t* y_bf16;  // instead of y, or null
  // The convolution that takes the outputs from conv_first on, which are not left in y; without a
  // state there is none. Each row is a sequence.
  CausalConv1dArgs conv;
  int conv_first;
  // The norm of the layer that reads y, and what is left for it; without x nothing is.
  const float* next_norm;
  DeferredRmsNorm next;
  bool lets_next_start;  // at once, else when rows may be read
  int under_way;         // boxes of weights that a paced block asks for at once as it begins,
  bool hurries;          // if it hurries only until rows may be read
  int first_boxes;       // of x, that come in one copy then; 0: each in its own
  Activation activation;
  JoinedLora lora;

  __host__ __device__ bool scaled() const { return scales != nullptr || squares != nullptr; }

  // Bytes of a stage.
  __host__ __device__ constexpr int W_bytes() const { return 2 * box_rows * W_row_bytes; }
  __host__ __device__ constexpr int x_box_bytes() const { return x_rows * kBoxBytes; }
  __host__ __device__ constexpr int x_bytes() const { return span * x_box_bytes(); }

  __host__ __device__ int cluster() const { return parts * sharers; }  // blocks
};

constexpr int kMostStages = 16;
struct Barriers {
  Barrier full[kMostStages], empty[kMostStages];
};

// A block's memory: a ring of stages, their parts of W, then those of x, and behind it the barriers
// and the scales of its rows. At its end the sums take the ring's place.
template <typename T>
struct Shared {
  // The stores of a warp meet no bank twice.
  using Sums = float[T::kRows][T::kTileM + (T::kWide ? 8 : 4)];
  struct Rest {
    Barriers barriers;
    Barrier rows, lora, ready;
    int hurry;
    float scales[T::kRows];
  };
  Barriers& barriers;
  Barrier& rows;        // of x, in the first boxes of a paced block
  volatile int& hurry;  // 1 once rows may be read
  float* scales;        // of the norm: of each row
  std::byte* W_scales;  // of packed weights of few rows: params.scale_bytes for each warp
  std::byte* lora;      // of params.lora: the table
  Barrier &lora_there, &ready;
  std::byte *ring, *x_ring;
  int W_bytes, x_bytes;  // of a stage

  // memory: begins at a multiple of 1024, from which the swizzle counts.
  __device__ Shared(std::byte* memory, const LinearParams& params)
      : Shared(memory, *reinterpret_cast<Rest*>(memory + rest_at(params)), params) {}
  __device__ std::byte* W(int stage) const { return ring + stage * W_bytes; }
  __device__ std::byte* x(int stage) const { return x_ring + stage * x_bytes; }
  __device__ Sums& sums() const { return *reinterpret_cast<Sums*>(ring); }
  // What adapters add to four outputs of a row, behind the sums.
  __device__ float4& added(const LinearParams& params, int row, int m) const {
    auto* const all = reinterpret_cast<float*>(ring + sizeof(Sums));
    return *reinterpret_cast<float4*>(all + row * added_stride(params) + m);
  }

  // All of it, and what the products of the last stage read behind their rows.
  static constexpr int bytes(const LinearParams& params) {
    const int last = params.stages - 1;
    return std::max({lora_at(params) + params.lora.table_bytes,
                     last * params.W_bytes() + kGroupM * kBoxBytes,
                     x_ring_at(params) + (params.stages * params.span - 1) * params.x_box_bytes() +
                         T::kRows * kBoxBytes});
  }

 private:
  __device__ Shared(std::byte* memory, Rest& rest, const LinearParams& params)
      : barriers(rest.barriers),
        rows(rest.rows),
        hurry(rest.hurry),
        scales(rest.scales),
        W_scales(memory + scales_at(params)),
        lora(memory + lora_at(params)),
        lora_there(rest.lora),
        ready(rest.ready),
        ring(memory),
        x_ring(ring + x_ring_at(params)),
        W_bytes(params.W_bytes()),
        x_bytes(params.x_bytes()) {}

  // Where the swizzle of x counts from.
  __host__ __device__ static constexpr int x_ring_at(const LinearParams& params) {
    return (params.stages * params.W_bytes() + 1023) / 1024 * 1024;
  }
  __host__ __device__ static constexpr int scales_at(const LinearParams& params) {
    return (rest_at(params) + static_cast<int>(sizeof(Rest)) + 15) / 16 * 16;
  }
  __host__ __device__ static constexpr int lora_at(const LinearParams& params) {
    return scales_at(params) + (2 * params.box_rows + 15) / 16 * params.scale_bytes;
  }
  __host__ __device__ static constexpr int added_stride(const LinearParams& params) {
    return 2 * params.box_rows + 4;
  }
  // Where the rest begins.
  __host__ __device__ static constexpr int rest_at(const LinearParams& params) {
    const int ring = x_ring_at(params) + params.stages * params.x_bytes();
    const int added = params.lora.table == nullptr
                          ? 0
                          : params.x_rows * added_stride(params) * static_cast<int>(sizeof(float));
    const int sums = static_cast<int>(sizeof(Sums)) + added;
    return ring < sums ? sums : ring;
  }
};

// Which boxes of K this block has, and which rows.
struct BlockCoord {
  int first_box, boxes;  // of K
  int W_row;             // of the tile's first box
  int x_row;
  int part;        // of K
  int first_rank;  // in the cluster: of the block with the tile's first part
};
// Rows of x in the tile.
__device__ inline int rows_of(const LinearParams& params, const BlockCoord& block) {
  return min(params.rows - block.x_row, params.x_rows);
}
// tile: of the layer, along W; a cluster has one, or one for each of its sharers.
template <typename T>
__device__ BlockCoord block_coord(const LinearParams& params, int tile) {
  const int rank = rank_in_cluster();
  const int part = T::kWide ? rank % params.parts : rank;
  const int sharer = T::kWide ? rank / params.parts : 0;
  const int each = params.piece_boxes * params.turns;
  return {.first_box = part * each,
          .boxes = max(0, min(each, params.boxes - part * each)),
          .W_row = tile * params.tile_step,
          .x_row = static_cast<int>(blockIdx.y * params.sharers + sharer) * params.x_rows,
          .part = part,
          .first_rank = sharer * params.parts};
}

}  // namespace recurve::cuda::sm90
