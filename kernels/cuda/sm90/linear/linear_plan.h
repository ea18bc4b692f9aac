#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/ops/linear.h"

// How a linear layer is divided into tiles, blocks and clusters, and which of the kernels that are
// compiled takes it: linear_kernel.cuh or linear_persistent.cuh. All of it follows from shapes and
// from the resources of the GPU, so that it is tested without one.
namespace recurve::cuda::sm90 {

constexpr int kGroupM = 64;  // rows of a warpgroup's product: of W or, in wide tilings, of x

// Into how many pieces K is split: so many that all multiprocessors have some where there are many
// rows of x, and each piece is of eight boxes or so; at least one. Follows from the shape of W
// alone, as a row's result does not depend on the other rows.
constexpr int kMostPieces = 8;
int pieces_of(const Matrix& W);

// What a kernel is compiled for.
struct TilingShape {
  int tile_m;  // rows of W of a tile, at most
  int rows;    // rows of x of a tile, at most
  int blocks;  // that share a multiprocessor
  bool wide;   // the rows of x are those of the products, and the rows of W their columns

  constexpr bool operator==(const TilingShape&) const = default;

  // Pieces of K that a block can sum up one after the other: it has registers for as many sums.
  constexpr int most_turns() const {
    if (wide) return rows > 128 ? 1 : tile_m > 128 ? 2 : 4;
    return tile_m <= 2 * kGroupM && blocks == 1 && rows > 32 && rows <= 128 ? 2 : 1;
  }
};
constexpr TilingShape narrow_tiling(int groups, int rows, int blocks) {
  return {.tile_m = groups * kGroupM, .rows = rows, .blocks = blocks, .wide = false};
}
constexpr TilingShape wide_tiling(int tile_m, int rows) {
  return {.tile_m = tile_m, .rows = rows, .blocks = 1, .wide = true};
}

// All that are compiled: plan_linear() chooses among these.
inline constexpr std::array kTilings = {
    narrow_tiling(2, 8, 1),   narrow_tiling(2, 8, 3),   narrow_tiling(1, 8, 3),
    narrow_tiling(2, 16, 1),  narrow_tiling(2, 16, 3),  narrow_tiling(1, 16, 3),
    narrow_tiling(2, 32, 1),  narrow_tiling(2, 32, 3),  narrow_tiling(1, 32, 3),
    narrow_tiling(2, 64, 1),  narrow_tiling(2, 64, 3),  narrow_tiling(1, 64, 3),
    narrow_tiling(2, 128, 1), narrow_tiling(2, 128, 2), narrow_tiling(1, 128, 2),
    narrow_tiling(3, 128, 1), wide_tiling(64, 128),     wide_tiling(80, 128),
    wide_tiling(96, 128),     wide_tiling(128, 128),    wide_tiling(144, 128),
    wide_tiling(160, 128),    wide_tiling(176, 128),    wide_tiling(192, 128),
    wide_tiling(64, 256),     wide_tiling(128, 256),    wide_tiling(176, 256),
    wide_tiling(192, 256),    narrow_tiling(2, 256, 1),
};

// Whether the tiling is compiled for weights that are packed, which a warpgroup holds in registers,
// and for those that are not. The more rows there are, the more products hide that it unpacks.
constexpr bool takes_packed(const TilingShape& tiling) {
  if (tiling.rows <= 64) return tiling.blocks == 1 || tiling.tile_m == kGroupM;
  return tiling == narrow_tiling(3, 128, 1) || tiling == narrow_tiling(2, 256, 1);
}
constexpr bool takes_plain(const TilingShape& tiling) { return tiling.wide || tiling.rows <= 128; }

// The resources of the GPU.
struct GpuRoom {
  int multiprocessors;
  // How many clusters of so many blocks of a tiling run at once: at least one, and fewer than the
  // blocks would say, as a cluster stays in one of the GPU's parts.
  int (*clusters_at_once)(const TilingShape& tiling, int blocks);
};

// How a layer is divided into blocks of a tiling.
struct TileConfig {
  TilingShape tiling;
  int box_rows;              // rows of W of a box; two boxes are a tile
  int tiles, tiles_of_rows;  // along W and along x
  int turns;                 // pieces of K that a block sums up, one after the other
  int parts;                 // of K, each of `turns` pieces and summed up by a separate block
  int sharers;               // tiles of a cluster, side by side along x, with the same rows of W

  TileConfig(const LinearArgs& args, const TilingShape& tiling, int box_rows, int turns,
             int sharers = 1);

  int cluster() const { return parts * sharers; }  // blocks
  int clusters() const { return tiles * tiles_of_rows / sharers; }
  int blocks() const { return clusters() * cluster(); }
  // How often the GPU is filled.
  int waves(const GpuRoom& gpu) const;
};

// Outputs of a tile whose boxes have so many rows of W.
int outputs_of_tile(const LinearArgs& args, int box_rows);

// Blocks that stay on their multiprocessor and make one tile after the other.
struct PersistentPlan {
  int tile_m;    // rows of W of a tile
  int sharers;   // blocks of a cluster, with the same rows of W: 1 or 2
  int64_t time;  // that they take, about: ns
};
constexpr int kPersistentRows = 128;  // of x, of a tile
// Rows of W of a tile where K is in up to two pieces, and where it is in more.
inline constexpr std::array kPersistentTileMs = {128, 160, 176, 192};
constexpr int kPersistentTileMOfMany = 128;
// Columns of a tile that such a block writes at a time.
constexpr int kStagedColumns = 32;

// The persistent blocks that take least time, or none where rows are few or the layer has what only
// linear_kernel.cuh does.
std::optional<PersistentPlan> plan_persistent(const LinearArgs& args, int multiprocessors);

// The persistent blocks for a layer of packed weights that are unpacked to bf16 in memory of so
// many bytes first: where rows are so many that this takes less than unpacking them for each tile.
// The layer has the same bits.
constexpr int kFewestUnpackedRows = 1024;
std::optional<PersistentPlan> plan_unpacked(const LinearArgs& args, int multiprocessors,
                                            size_t bytes);

struct LinearPlan {
  TileConfig tiles;
  std::optional<PersistentPlan> persistent;  // instead of the tiles, where these take more time
};
LinearPlan plan_linear(const LinearArgs& args, const GpuRoom& gpu);

// The tiles of layers that share a launch, in their order: of one tiling and height. The layers
// have the same rows, at most kMostGroupedRows, and K in as many pieces.
constexpr int kMostGroupedRows = 64;
std::vector<TileConfig> plan_group(std::span<const LinearArgs> layers, const GpuRoom& gpu);

}  // namespace recurve::cuda::sm90
