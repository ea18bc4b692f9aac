#pragma once
#include <algorithm>

#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/sm80/tile.cuh"
#include "kernels/cuda/sm80/vector.cuh"
#include "kernels/cuda/sm90/bulk.cuh"
#include "kernels/cuda/sm90/matrix/tile_segments.h"
#include "kernels/cuda/sm90/tensor_map.h"
#include "kernels/cuda/sm90/wgmma.cuh"

// What the roles of a block of tile_scan.cu share.
namespace recurve::cuda::sm90::tile_scan {

using sm80::kTileRows;
using sm80::RowBlock;
using sm80::TileChunkArgs;
using sm80::TileWeights;

constexpr int kColumns = 64;  // of a head that a block has
constexpr int kGroupThreads = 128;
constexpr int kOutputGroups = 2, kFirstStateGroup = kOutputGroups;
constexpr int kRoundingThreads = 3 * kWarpSize;
// P of a tile where it comes from scratch memory, in bf16: for each 16 keys the registers of each
// thread of a warpgroup, as its products take them on their left.
constexpr int kPairPieces = kTileRows / 16 * kGroupThreads;
constexpr int kWeighted = 2;  // in shared memory, of as many tiles

// How a block is divided for heads of so many keys. Warpgroups: two that make outputs, one or two
// that have the state, some of its keys each, and one of which a warp copies and the others round
// values.
template <int kDK>
struct Shape {
  static constexpr bool kWide = kDK > 128;
  static constexpr int kKeys = kWide ? 128 : kDK;  // of a warpgroup that has the state
  static constexpr int kStateGroups = kDK / kKeys, kStateThreads = kStateGroups * kGroupThreads;
  static constexpr int kLastGroup = kFirstStateGroup + kStateGroups;
  static constexpr int kThreads = (kLastGroup + 1) * kGroupThreads;
  static constexpr int kCopyWarp = kLastGroup * (kGroupThreads / kWarpSize);
  // Of a thread: in all no more than the block starts with.
  static constexpr int kOutputRegisters = kWide ? 112 : 160;
  static constexpr int kStateRegisters = kWide ? 104 : 128;
  static constexpr int kOtherRegisters = kWide ? 48 : 56;
  // In shared memory, of as many tiles.
  static constexpr int kStages = kWide ? 2 : 3, kRounded = kWide ? 1 : 2, kStates = kWide ? 1 : 2;
  // Whether outputs may be gated, and left for the norm of the next layer: of wide heads none are.
  static constexpr bool kGates = !kWide;
};

// Matrices lie as products read them: rows of 64 bf16, swizzled, and where they are wider each
// further 64 columns behind all rows of those before.
constexpr int kHalf = kTileRows * 64;  // values
__host__ __device__ inline int swizzled_at(int row, int piece) {
  return piece / 8 * kHalf + row * 64 + 8 * (piece % 8 ^ row % 8);
}

// What a tile needs. Values lie as the copy engine writes them: boxes of kFloatBox columns.
template <int kDK>
struct alignas(1024) Stage {
  uint16_t q[kTileRows * kDK], k[kTileRows * kDK];
  float v[kTileRows * kColumns];
  TileWeights weights;  // or the decays of channels

  // Of a key channel over the tile.
  __device__ const float* decays() const { return reinterpret_cast<const float*>(&weights); }
  __device__ static int value_at(int row, int d) {
    return d / kFloatBox * kTileRows * kFloatBox + row * kFloatBox +
           4 * (d % kFloatBox / 4 ^ row % 8) + d % 4;
  }
};

template <int kDK>
struct Shared {
  static constexpr int kStages = Shape<kDK>::kStages, kRounded = Shape<kDK>::kRounded;
  static constexpr int kStates = Shape<kDK>::kStates;
  Stage<kDK> stages[kStages];
  // The values of a tile in bf16, and times the weights of their rows. In `rounded` zeros are in
  // the place of those that are no numbers, or infinite: those of a later row must not meet the
  // zeros that P has for it.
  uint16_t rounded[kRounded][kHalf], weighted[kWeighted][kHalf];
  uint16_t states[kStates][kColumns * kDK];
  uint32_t infinite[kRounded][kRoundingThreads / kWarpSize];  // whether a warp found such values
  Barrier full[kStages], empty[kStages];
  Barrier passed[kStages];  // as `empty`, of tiles before the block's own
  Barrier arrived;          // the state is at the first of these
  // See HandedTile.
  Barrier rounded_full[kOutputGroups], rounded_empty[kOutputGroups];
  Barrier state_full[kOutputGroups], state_empty[kOutputGroups];
};

// One head of one sequence, some columns of it, and some of its tiles. A cluster's blocks have the
// same head and columns.
struct BlockCoord {
  int sequence, head, d0;
  int begin, length;  // rows of the sequence that take the chunk form
  int first, end;     // of the block's tiles, among those of this call
  bool last;          // whether no block has later ones

  __device__ explicit BlockCoord(const TileChunkArgs& a) {
    const int segment = static_cast<int>(blockIdx.x) % a.segments;
    const int number = static_cast<int>(blockIdx.x) / a.segments;
    const int columns = a.DV / kColumns, of_all = number / columns;
    sequence = of_all / a.H;
    head = of_all % a.H;
    d0 = number % columns * kColumns;
    begin = a.seqs.begin[sequence];
    length = sm80::step_rows(a.seqs, a.chunk, sequence).first - begin;
    const int behind = (length + kTileRows - 1) / kTileRows - a.first_tile;
    const int tiles = max(min(a.tiles, behind), 0);
    first = first_tile_of_segment(segment, a.segments, tiles, kStatePercent);
    end = first_tile_of_segment(segment + 1, a.segments, tiles, kStatePercent);
    last = segment == a.segments - 1;
  }
  // Tile n of those of this call, none of rows behind the block's last: chunks are whole tiles.
  __device__ RowBlock rows(const TileChunkArgs& a, int n) const {
    if (n >= end) return {0, 0};
    const int at = (a.first_tile + n) * kTileRows;
    return {begin + at, min(kTileRows, length - at)};
  }
  // Whether the block has anything to do: its own tiles, or the state behind all of them.
  __device__ bool idle() const { return end == 0 || (first == end && !last); }
  // The block's first column among those of all heads.
  __device__ int64_t column(const TileChunkArgs& a) const {
    return static_cast<int64_t>(head) * a.DV + d0;
  }
};

// Which of a ring's kCount stages tile n has, and how often modulo 2 the ring has been gone
// through.
template <int kCount>
struct RingStage {
  int index;
  uint32_t parity;
  __device__ explicit RingStage(int n) : index(n % kCount), parity(n / kCount % 2) {}
};

// Tile n of the block's own, handed to the group that makes its outputs: which of kCount buffers it
// has, and which of the barriers of that group. Each group has separate barriers, even where both
// take turns with one buffer: phases of one barrier would alternate between the groups, so that
// each waited for phases of one parity only, and would pass before its own had begun.
template <int kCount>
struct HandedTile {
  static_assert(kCount <= kOutputGroups);
  int buffer, group;
  uint32_t parity;
  __device__ explicit HandedTile(int n)
      : buffer(n % kCount), group(n % kOutputGroups), parity(n / kOutputGroups % 2) {}
};

// Waits until the tile that had the buffer of tile n before has been taken.
template <int kCount>
__device__ inline void wait_until_taken(Barrier (&empty)[kOutputGroups], int n) {
  if (n < kCount) return;
  const HandedTile<kCount> before(n - kCount);
  wait(&empty[before.group], before.parity);
}

// Waits where products are on their way, without end: if nothing comes, it is the warp that copies
// that gives up.
__device__ inline void wait_among_products(Barrier* barrier, uint32_t parity) {
  while (!phase_ended(barrier, parity)) {
  }
}

// What products left in these registers is not read before.
template <int kCount>
__device__ inline void settle(float (&d)[kCount]) {
#pragma unroll
  for (float& value : d) asm volatile("" : "+f"(value)::"memory");
}

// Where a thread stands in its warpgroup, and a lane in products: register i of d is of the row
// row() + i / 2 % 2 * 8 and the column i / 4 * 8 + 2 q + i % 2.
struct Lane {
  int warp, g, q;
  __device__ Lane()
      : warp(static_cast<int>(threadIdx.x) % kGroupThreads / kWarpSize),
        g(threadIdx.x % kWarpSize / 4),
        q(threadIdx.x % 4) {}
  __device__ int row() const { return 16 * warp + g; }
};

// d (64, 64) = a b^T, both (64, kDK) swizzled.
template <int kDK>
__device__ inline void multiply_all(float (&d)[32], const uint16_t* a, const uint16_t* b) {
  const uint64_t left = operand(shared_address(a)), right = operand(shared_address(b));
#pragma unroll
  for (int x = 0; x < kDK; x += 16) {
    const int at = (x / 64 * kHalf + x % 64) * static_cast<int>(sizeof(uint16_t)) >> 4;
    multiply(d, left + at, right + at, x > 0);
  }
}

// Eight values of a row, in bf16, or zeros where the tile lacks it: what was loaded is another
// sequence's then.
template <int kDK>
__device__ uint4 round_eight(const Stage<kDK>& stage, const RowBlock& rows, int row, int piece,
                             float by) {
  if (row >= rows.L) return make_uint4(0, 0, 0, 0);
  const auto four = [&](int d) {
    return *reinterpret_cast<const float4*>(stage.v + stage.value_at(row, d));
  };
  const float4 low = four(8 * piece), high = four(8 * piece + 4);
  return make_uint4(round_bf16(low.x * by, low.y * by), round_bf16(low.z * by, low.w * by),
                    round_bf16(high.x * by, high.y * by), round_bf16(high.z * by, high.w * by));
}

// Waits until all of the warpgroup are here, or of so many threads from it on; what they wrote to
// shared memory is there for all.
template <int kThreads = kGroupThreads>
__device__ inline void sync_group(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(kThreads) : "memory");
}

__device__ inline bool is_infinite(uint32_t bf16) { return (bf16 & 0x7f80) == 0x7f80; }

// What the warp that copies does, one of its threads.
template <int kDK, bool kChannels>
__device__ void load_tiles(const TileChunkArgs& a, const CUtensorMap& v, Shared<kDK>& s) {
  const BlockCoord block(a);
  const auto column = static_cast<int>(block.column(a));
  constexpr int kStages = Shape<kDK>::kStages;
  if (block.idle()) return;
  for (int n = 0;; ++n) {
    const RowBlock rows = block.rows(a, n);
    if (rows.L == 0) return;
    const RingStage<kStages> ring(n);
    Stage<kDK>& stage = s.stages[ring.index];
    Barrier* full = &s.full[ring.index];
    const bool passes = n < block.first;
    if (n - block.first >= kStages) {
      wait(&s.empty[ring.index], (n - block.first) / kStages % 2 ^ 1);
    } else if (n >= kStages) {
      wait(&s.passed[ring.index], ring.parity ^ 1);
    }
    const int64_t number = static_cast<int64_t>(block.sequence) * a.tiles + n;
    const int64_t group = number * a.groups() + block.head / a.q.heads;
    constexpr uint32_t kWeights = kChannels ? kDK * sizeof(float) : sizeof(stage.weights);
    static_assert(kWeights <= sizeof(stage.weights));
    arrive_expecting(full,
                     (passes ? 0 : sizeof(stage.q)) + sizeof(stage.k) + sizeof(stage.v) + kWeights);
    if (!passes) bulk_load(stage.q, a.scratch.q + group * kTileRows * kDK, sizeof(stage.q), full);
    bulk_load(stage.k, a.scratch.k + group * kTileRows * kDK, sizeof(stage.k), full);
    const int64_t head = number * a.H + block.head;
    if constexpr (kChannels) {
      bulk_load(&stage.weights, a.scratch.F + head * kDK, kWeights, full);
    } else {
      bulk_load(&stage.weights, a.scratch.weights + head, kWeights, full);
    }
#pragma unroll
    for (int d = 0; d < kColumns; d += kFloatBox) {
      load_box(stage.v + d * kTileRows, v, column + d, rows.first, full, Keep::kNormal);
    }
  }
}

}  // namespace recurve::cuda::sm90::tile_scan
