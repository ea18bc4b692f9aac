#include "kernels/cuda/sm90/linear/linear_plan.h"

#include <algorithm>
#include <span>

#include "kernels/ceil_div.h"
#include "kernels/cuda/sm80/capabilities.h"
#include "kernels/cuda/sm90/linear/box.h"

namespace recurve::cuda::sm90 {
namespace {

using sm80::aligned;

int round_up(int a, int b) { return ceil_div(a, b) * b; }

// How many of the pieces of K a block of a tiling that is not wide sums up one after the other: two
// where these are short and W is too high for one tile on a multiprocessor if each block has but
// one.
int turns_of(const Matrix& W, const TilingShape& tiling) {
  constexpr int kShort = 12 * kBoxK, kHigh = 2048;
  const int pieces = pieces_of(W);
  return pieces > 2 && W.K <= pieces * kShort && W.N > kHigh ? tiling.most_turns() : 1;
}

// Tiles so high that their clusters fill the GPU, once or as often as it
// takes with tiles of at most tile_m rows.
TileConfig filling(const LinearArgs& args, const TilingShape& tiling, const GpuRoom& gpu) {
  const int turns = turns_of(args.W, tiling);
  const TileConfig any(args, tiling, kGroupM, turns);
  const int clusters = std::max(1, gpu.clusters_at_once(tiling, any.parts) / any.tiles_of_rows);
  for (int waves = 1;; ++waves) {
    const int64_t boxes = int64_t{clusters} * waves * outputs_of_tile(args, 1);
    const int box_rows = round_up(ceil_div(args.outputs(), boxes), 4);
    if (2 * box_rows <= tiling.tile_m) return {args, tiling, std::max(box_rows, 8), turns};
  }
}

// Tiles of the height that fills the GPU, which weights read from memory want. Several high tiles
// on a multiprocessor leave too few registers for packed weights, which take low ones alone.
LinearPlan plan_filling(const LinearArgs& args, int rows, int blocks, const GpuRoom& gpu) {
  if (args.W.format != nullptr) return {filling(args, narrow_tiling(1, rows, blocks), gpu)};
  const TileConfig two = filling(args, narrow_tiling(2, rows, blocks), gpu);
  if (2 * two.box_rows > kGroupM) return {two};
  return {{args, narrow_tiling(1, rows, blocks), two.box_rows, two.turns}};
}

// Tiles of layers that share a launch: the lowest with which their clusters fill the room that
// there is for them, once or as often as it takes. A piece of K is a block's.
std::vector<TileConfig> filling(std::span<const LinearArgs> layers, const TilingShape& tiling,
                                const GpuRoom& gpu) {
  const int room = std::max(1, gpu.clusters_at_once(tiling, pieces_of(layers[0].W)));
  for (int waves = 1;; ++waves) {
    for (int box_rows = 8; 2 * box_rows <= tiling.tile_m; box_rows += 4) {
      std::vector<TileConfig> configs;
      int clusters = 0;
      for (const LinearArgs& layer : layers) {
        clusters += configs.emplace_back(layer, tiling, box_rows, 1).clusters();
      }
      if (clusters <= waves * room) return configs;
    }
  }
}

// One tile on a multiprocessor, as x is read for each, unless that makes them very low or does not
// take all of W: then several blocks.
constexpr int kLow = 40;
LinearPlan plan_one_or(const LinearArgs& args, int rows, int blocks, const GpuRoom& gpu) {
  const TileConfig one = filling(args, narrow_tiling(2, rows, 1), gpu);
  if (2 * one.box_rows >= kLow && one.waves(gpu) == 1) return {one};
  return plan_filling(args, rows, blocks, gpu);
}

// About how long wide tiles take, in ns, as measured on an H200: a box takes what its products take
// or what its rows take to come. Blocks that share some need a while to agree; it takes longer
// where each loads all of them, and most where others load the same weights. Then there are the
// beginning, the outputs and the sums of another block.
int64_t time_of(const LinearArgs& args, const TileConfig& config, const GpuRoom& gpu) {
  constexpr double kProduct = 2.73 / 128, kRow = 1.16, kShared = 290, kAlone = 1.2;
  constexpr double kProductAmongOthers = 2.87 / 128, kRowAmongOthers = 1.75;
  constexpr double kBegin = 4000, kOutput = 17.6 / 128, kOtherSums = 1300;
  const int elements = config.tiling.tile_m * config.tiling.rows;
  const int box_rows = config.tiling.tile_m + config.tiling.rows;
  const double least = std::max(kProduct * elements, kRow * box_rows);
  const double box = config.sharers > 1 ? std::max(least, kShared)
                     : config.tiles_of_rows == 1
                         ? kAlone * least
                         : std::max(kProductAmongOthers * elements, kRowAmongOthers * box_rows);
  const double time = box * static_cast<double>(args.W.K) / (kBoxK * config.parts) + kBegin +
                      kOutput * elements / config.parts + (config.parts > 1 ? kOtherSums : 0);
  return config.waves(gpu) * static_cast<int64_t>(time);
}

// The wide tiles of these heights that take least time, or persistent blocks if they take less.
LinearPlan plan_widest(const LinearArgs& args, int rows, std::span<const int> tile_ms,
                       const GpuRoom& gpu) {
  std::optional<TileConfig> best;
  int64_t least = 0;
  const int pieces = pieces_of(args.W), tiles_of_rows = ceil_div(args.rows, rows);
  const auto look_at = [&](int parts, int sharers) {
    for (const int tile_m : tile_ms) {
      const TilingShape tiling = wide_tiling(tile_m, rows);
      if (pieces / parts > tiling.most_turns()) continue;
      const TileConfig config(args, tiling, tile_m / 2, pieces / parts, sharers);
      const int64_t time = time_of(args, config, gpu);
      if (best && time >= least) continue;
      best = config;
      least = time;
    }
  };
  for (int parts = 1; parts <= std::min(pieces, 2); ++parts) {
    look_at(parts, 1);
    // Few clusters of four run at once: for one wave of them.
    if (tiles_of_rows == 2 || (tiles_of_rows % 2 == 0 && parts == 1)) look_at(parts, 2);
  }
  const auto persistent = plan_persistent(args, gpu.multiprocessors);
  return {*best, persistent && persistent->time < least ? persistent : std::nullopt};
}

// Tiles of 256 rows where K is in one piece, unless they leave half of the multiprocessors idle.
LinearPlan plan_wide(const LinearArgs& args, const GpuRoom& gpu) {
  constexpr std::array kTileMs = {64, 80, 96, 128, 144, 160, 176, 192};
  constexpr std::array kTileMsOf256Rows = {64, 128, 176, 192};
  const TileConfig lowest(args, wide_tiling(kTileMs[0], 256), kTileMs[0] / 2, 1);
  if (lowest.parts == 1 && lowest.blocks() > gpu.multiprocessors / 2) {
    return plan_widest(args, 256, kTileMsOf256Rows, gpu);
  }
  return plan_widest(args, 128, kTileMs, gpu);
}

// Up to 128 rows x weighs as much as W, and tiles that are high or wide are best where there are
// enough of them. A longer K takes longer in turn than it does to add up its pieces in other
// blocks.
LinearPlan plan_some_rows(const LinearArgs& args, int wide_blocks, const GpuRoom& gpu) {
  constexpr int kLongK = 4096, kEnough = 60;
  const bool in_turn = pieces_of(args.W) > 1 && args.W.K <= kLongK;
  if (in_turn && wide_blocks >= kEnough) return plan_wide(args, gpu);
  if (turns_of(args.W, narrow_tiling(2, 128, 1)) > 1) return plan_one_or(args, 128, 2, gpu);
  const TileConfig high = filling(args, narrow_tiling(3, 128, 1), gpu);
  if (high.box_rows > kGroupM) return {high};
  return plan_filling(args, 128, 2, gpu);
}

// About how long persistent blocks take, in ns, as measured on an H200.
int64_t time_of(const LinearArgs& args, int tile_m, int sharers, int multiprocessors) {
  constexpr double kBegin = 6000, kBox = 2.75, kBoxAlone = 2.9, kPiece = 300, kTile = 1200;
  const int tiles = ceil_div(static_cast<int>(args.outputs()), args.swiglu ? tile_m / 2 : tile_m) *
                    ceil_div(args.rows, sharers * kPersistentRows);
  const int waves = ceil_div(tiles, multiprocessors / sharers);
  const double box = (sharers > 1 ? kBox : kBoxAlone) * tile_m;
  const double tile = box * ceil_div(args.W.K, kBoxK) + kPiece * pieces_of(args.W) + kTile;
  return static_cast<int64_t>(kBegin + waves * tile);
}

}  // namespace

int pieces_of(const Matrix& W) {
  // Around two thousand outputs more than four pieces cost more than they bring: measured at 1 to
  // 64 rows.
  constexpr int kWantedBlocks = 120, kTileM = 128;
  const int most = W.N > 1024 && W.N <= 2048 ? kMostPieces / 2 : kMostPieces;
  int pieces = 1;
  while (pieces < most && ceil_div(W.N, kTileM) * pieces < kWantedBlocks &&
         W.K / (2 * pieces) >= 8 * kBoxK) {
    pieces *= 2;
  }
  return pieces;
}

int outputs_of_tile(const LinearArgs& args, int box_rows) {
  return args.swiglu ? box_rows : 2 * box_rows;
}

TileConfig::TileConfig(const LinearArgs& args, const TilingShape& tiling, int box_rows, int turns,
                       int sharers)
    : tiling(tiling),
      box_rows(box_rows),
      tiles(static_cast<int>(ceil_div(args.outputs(), outputs_of_tile(args, box_rows)))),
      tiles_of_rows(ceil_div(args.rows, tiling.rows)),
      turns(turns),
      parts(pieces_of(args.W) / turns),
      sharers(sharers) {}

int TileConfig::waves(const GpuRoom& gpu) const {
  return ceil_div(clusters(), gpu.clusters_at_once(tiling, cluster()));
}

std::optional<PersistentPlan> plan_persistent(const LinearArgs& args, int multiprocessors) {
  constexpr int kFewestRows = 257;
  const bool adds = args.residual != nullptr;
  if (args.rows < kFewestRows || args.outputs() % 4 != 0 || args.soft_cap != 0 || args.conv ||
      (adds && (args.residual != args.y || args.swiglu || args.y_bf16 != nullptr)) ||
      !aligned(args.y) || !aligned(args.y_bf16) || !aligned(args.bias)) {
    return std::nullopt;
  }
  std::optional<PersistentPlan> best;
  for (const int tile_m : kPersistentTileMs) {
    if (args.swiglu && tile_m % kStagedColumns != 0) continue;
    if (pieces_of(args.W) > 2 && tile_m != kPersistentTileMOfMany) continue;
    for (const int sharers : {2, 1}) {
      const int64_t time = time_of(args, tile_m, sharers, multiprocessors);
      if (!best || time < best->time) best = {tile_m, sharers, time};
    }
  }
  return best;
}

std::optional<PersistentPlan> plan_unpacked(const LinearArgs& args, int multiprocessors,
                                            size_t bytes) {
  const auto values = static_cast<size_t>(args.W.N * args.W.K);
  if (args.rows < kFewestUnpackedRows || values > bytes / sizeof(uint16_t)) return std::nullopt;
  return plan_persistent(args, multiprocessors);
}

// Up to 64 rows weights are what takes time. With several blocks on a multiprocessor another's
// weights come while one ends, or those of the next kernel.
LinearPlan plan_linear(const LinearArgs& args, const GpuRoom& gpu) {
  for (const int rows : {8, 16, 32, 64}) {
    if (args.rows <= rows) return plan_one_or(args, rows, 3, gpu);
  }
  if (args.W.format != nullptr) {
    const bool few = args.rows <= 128;
    return {filling(args, few ? narrow_tiling(3, 128, 1) : narrow_tiling(2, 256, 1), gpu)};
  }
  constexpr int kFew = 24;
  const int pieces = pieces_of(args.W), turns = pieces > 2 ? pieces / 2 : pieces;
  const int wide_blocks = TileConfig(args, wide_tiling(64, 128), 64 / 2, turns).blocks();
  if (wide_blocks < kFew) return plan_filling(args, 64, 3, gpu);
  if (args.rows <= 128) return plan_some_rows(args, wide_blocks, gpu);
  return plan_wide(args, gpu);
}

// As plan_one_or().
std::vector<TileConfig> plan_group(std::span<const LinearArgs> layers, const GpuRoom& gpu) {
  int rows = 8;
  while (rows < layers[0].rows) rows *= 2;
  std::vector<TileConfig> configs = filling(layers, narrow_tiling(2, rows, 1), gpu);
  int clusters = 0;
  for (const TileConfig& config : configs) clusters += config.clusters();
  const bool one_wave = clusters <= gpu.clusters_at_once(configs[0].tiling, configs[0].cluster());
  if (one_wave && 2 * configs[0].box_rows >= kLow) return configs;
  configs = filling(layers, narrow_tiling(2, rows, 3), gpu);
  if (2 * configs[0].box_rows <= kGroupM) {
    for (TileConfig& config : configs) config.tiling = narrow_tiling(1, rows, 3);
  }
  return configs;
}

}  // namespace recurve::cuda::sm90
