// How linear layers are divided among the blocks of a GPU, asked without one.
#include "kernels/cuda/sm90/linear/linear_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "kernels/ceil_div.h"
#include "kernels/cuda/sm90/linear/box.h"
#include "kernels/formats/int4.h"
#include "kernels/formats/int8.h"

namespace recurve::testing::linear_plan_test {

using cuda::sm90::GpuRoom;
using cuda::sm90::kMostGroupedRows;
using cuda::sm90::kPersistentTileMs;
using cuda::sm90::kTilings;
using cuda::sm90::LinearPlan;
using cuda::sm90::outputs_of_tile;
using cuda::sm90::pieces_of;
using cuda::sm90::plan_group;
using cuda::sm90::plan_linear;
using cuda::sm90::plan_unpacked;
using cuda::sm90::takes_packed;
using cuda::sm90::takes_plain;
using cuda::sm90::TileConfig;
using cuda::sm90::TilingShape;

// The tilings that a plan has asked for: only compiled ones may be.
std::vector<TilingShape> asked;

// How many clusters of 1 to 8 blocks run concurrently, about as on an H200.
int as_on_h200(const TilingShape& tiling, int blocks) {
  asked.push_back(tiling);
  constexpr int kClusters[] = {0, 132, 66, 42, 32, 24, 20, 17, 15};
  return kClusters[blocks] * tiling.blocks;
}
constexpr GpuRoom kH200 = {.multiprocessors = 132, .clusters_at_once = as_on_h200};
// A GPU with less room.
constexpr GpuRoom kSmall = {.multiprocessors = 78,
                            .clusters_at_once = [](const TilingShape& tiling, int blocks) {
                              return std::max(1, as_on_h200(tiling, blocks) / 2);
                            }};

alignas(16) float somewhere[4];

LinearArgs layer(int64_t N, int64_t K, int rows) {
  return {.rows = rows, .W = {.dtype = DType::kBF16, .N = N, .K = K}, .y = somewhere};
}

// Calls f for layers of many shapes, each as it is and gated.
template <typename F>
void for_layers(F f) {
  for (const int64_t N : {64, 256, 1024, 2048, 2560, 3072, 4096, 5120, 10576, 21888, 50280}) {
    for (const int64_t K : {256, 520, 768, 1536, 2560, 4096, 5120, 8192, 10944}) {
      for (const int rows : {1, 8, 9, 30, 64, 65, 100, 128, 129, 256, 257, 512, 700, 2048, 8192}) {
        for (const bool swiglu : {false, true}) {
          LinearArgs args = layer(N, K, rows);
          args.swiglu = swiglu;
          SCOPED_TRACE(::testing::Message()
                       << N << " x " << K << ", rows " << rows << (swiglu ? ", gated" : ""));
          f(args);
        }
      }
    }
  }
}

TEST(LinearPlan, EveryOutputHasItsTile) {
  for (const GpuRoom& gpu : {kH200, kSmall}) {
    for_layers([&](const LinearArgs& args) {
      const TileConfig c = plan_linear(args, gpu).tiles;
      EXPECT_NE(std::find(kTilings.begin(), kTilings.end(), c.tiling), kTilings.end());
      EXPECT_LE(2 * c.box_rows, c.tiling.tile_m);
      EXPECT_EQ(c.box_rows % (c.tiling.wide ? 8 : 4), 0) << "what the copy engine and stores want";
      EXPECT_GE(int64_t{c.tiles} * (args.swiglu ? 1 : 2) * c.box_rows, args.outputs());
      EXPECT_LT(int64_t{c.tiles - 1} * (args.swiglu ? 1 : 2) * c.box_rows, args.outputs());
      EXPECT_EQ(c.tiles_of_rows, ceil_div(args.rows, c.tiling.rows));
    });
  }
}

TEST(LinearPlan, EveryPieceOfKIsSummedUpOnce) {
  for_layers([](const LinearArgs& args) {
    const TileConfig c = plan_linear(args, kH200).tiles;
    EXPECT_EQ(c.turns * c.parts, pieces_of(args.W));
    EXPECT_LE(c.turns, c.tiling.most_turns());
    EXPECT_LE(c.cluster(), cuda::sm90::kMostPieces) << "more blocks than a cluster may have";
    EXPECT_EQ(c.tiles_of_rows % c.sharers, 0) << "a tile shares its weights with no other";
    EXPECT_TRUE(c.sharers == 1 || c.tiling.wide);
  });
}

// The order of a sum follows from its pieces, so they may not depend on the rows or on the GPU.
TEST(LinearPlan, PiecesFollowFromTheMatrixAloneAndNoneIsEmpty) {
  for_layers([](const LinearArgs& args) {
    const int pieces = pieces_of(args.W);
    EXPECT_TRUE(pieces == 1 || pieces == 2 || pieces == 4 || pieces == 8);
    const int boxes = ceil_div(static_cast<int>(args.W.K), cuda::sm90::kBoxK);
    EXPECT_GT(boxes, (pieces - 1) * ceil_div(boxes, pieces));
    for (const GpuRoom& gpu : {kH200, kSmall}) {
      const TileConfig c = plan_linear(args, gpu).tiles;
      EXPECT_EQ(c.turns * c.parts, pieces);
    }
  });
  EXPECT_EQ(pieces_of({.N = 15360, .K = 4096}), 1) << "tiles enough without any";
  EXPECT_EQ(pieces_of({.N = 5120, .K = 160}), 1) << "too short";
  EXPECT_EQ(pieces_of({.N = 4096, .K = 4096}), 4);
  EXPECT_EQ(pieces_of({.N = 2560, .K = 5120}), 8);
  EXPECT_EQ(pieces_of({.N = 2048, .K = 8192}), 4) << "around two thousand outputs no more";
}

TEST(LinearPlan, NoKernelIsCompiledThatNoLayerGets) {
  std::set<std::string> chosen, packed;
  const auto name = [](const TilingShape& t) {
    return std::string(t.wide ? "wide " : "") + std::to_string(t.tile_m) + " x " +
           std::to_string(t.rows) + ", blocks " + std::to_string(t.blocks);
  };
  std::set<int> persistent;
  const auto note = [&](const LinearArgs& args) {
    const LinearPlan plan = plan_linear(args, kH200);
    if (!plan.persistent) chosen.insert(name(plan.tiles.tiling));
    if (plan.persistent) persistent.insert(plan.persistent->tile_m);
    LinearArgs as_int8 = args;
    as_int8.W.dtype = DType::kPacked;
    as_int8.W.format = &kInt8Weights;
    packed.insert(name(plan_linear(as_int8, kH200).tiles.tiling));
  };
  for_layers([&](LinearArgs args) {
    for (const int rows : {16, 32, 300, 384, 1000, 1500}) {
      note(args);
      args.rows = rows;
    }
    args.soft_cap = 30;  // which no persistent block does
    note(args);
    args.rows = 513;
    note(args);
  });
  for (const TilingShape& tiling : kTilings) {
    EXPECT_EQ(chosen.contains(name(tiling)), takes_plain(tiling)) << name(tiling);
    EXPECT_EQ(packed.contains(name(tiling)), takes_packed(tiling)) << "packed, " << name(tiling);
  }
  for (const int tile_m : kPersistentTileMs) EXPECT_TRUE(persistent.contains(tile_m)) << tile_m;
}

// Packed weights are held in registers, for which fewer tilings are compiled; K is cut as in bf16,
// as they are to have the bits of that layer.
TEST(LinearPlan, PackedWeightsGetTilingsThatHoldThem) {
  for_layers([](LinearArgs args) {
    const int pieces = pieces_of(args.W);
    args.W.dtype = DType::kPacked;
    args.W.format = &kInt8Weights;
    for (const GpuRoom& gpu : {kH200, kSmall}) {
      asked.clear();
      const LinearPlan plan = plan_linear(args, gpu);
      EXPECT_TRUE(takes_packed(plan.tiles.tiling));
      EXPECT_TRUE(std::all_of(asked.begin(), asked.end(), takes_packed));
      EXPECT_FALSE(plan.persistent);
      EXPECT_EQ(plan.tiles.turns * plan.tiles.parts, pieces);
      EXPECT_GE(plan.tiles.tiles_of_rows * plan.tiles.tiling.rows, args.rows);
      EXPECT_GE(plan.tiles.tiles * outputs_of_tile(args, plan.tiles.box_rows), args.outputs());
    }
  });
}

// Of a head, low tiles: several high ones on a multiprocessor leave them too few registers.
TEST(LinearPlan, ALargePackedLayerGetsLowTilesForFewRows) {
  for (const WeightFormat* format : {&kInt8Weights, &kInt4Weights}) {
    for (const int rows : {1, 16, 32, 64}) {
      LinearArgs args = layer(50304, 4096, rows);
      EXPECT_EQ(plan_linear(args, kH200).tiles.tiling.tile_m, 128);
      args.W.dtype = DType::kPacked;
      args.W.format = format;
      const TileConfig c = plan_linear(args, kH200).tiles;
      EXPECT_EQ(c.tiling.tile_m, 64) << format->name << ", rows " << rows;
      EXPECT_EQ(c.tiling.blocks, 3) << format->name << ", rows " << rows;
      EXPECT_GE(c.tiles * 2 * c.box_rows, 50304) << format->name << ", rows " << rows;
    }
  }
}

TEST(LinearPlan, PersistentBlocksTakeManyRowsOfOrdinaryLayers) {
  const auto persistent = [](const LinearArgs& args) {
    return plan_linear(args, kH200).persistent.has_value();
  };
  LinearArgs args = layer(4096, 4096, 8192);
  EXPECT_TRUE(persistent(args));
  args.rows = 256;
  EXPECT_FALSE(persistent(args)) << "few rows";
  args.rows = 8192;
  args.residual = args.y;
  EXPECT_TRUE(persistent(args)) << "added where it stands";
  args.residual = somewhere + 4;
  EXPECT_FALSE(persistent(args)) << "a residual elsewhere";
  args = layer(4096, 4096, 8192);
  args.soft_cap = 30;
  EXPECT_FALSE(persistent(args));
  args = layer(4096, 4096, 8192);
  args.conv = CausalConv1dArgs{};
  EXPECT_FALSE(persistent(args));
  args = layer(4094, 4096, 8192);
  EXPECT_FALSE(persistent(args)) << "rows of y that are not whole vectors";
  args = layer(4096, 4096, 8192);
  args.y = somewhere + 1;
  EXPECT_FALSE(persistent(args)) << "y where no vector begins";
}

TEST(LinearPlan, MatricesAreUnpackedForManyRowsWhereThereIsMemory) {
  constexpr size_t kBytes = size_t{64} << 20;
  const auto unpacked = [](const LinearArgs& args) {
    return plan_unpacked(args, 132, kBytes).has_value();
  };
  LinearArgs args = layer(8192, 4096, 8192);
  EXPECT_TRUE(unpacked(args));
  args.W.N += 8;
  EXPECT_FALSE(unpacked(args)) << "more values than there is memory for";
  EXPECT_FALSE(unpacked(layer(8192, 4096, cuda::sm90::kFewestUnpackedRows - 1)));
  args = layer(8192, 4096, 8192);
  args.soft_cap = 30;
  EXPECT_FALSE(unpacked(args)) << "what no persistent block does";
  EXPECT_FALSE(plan_unpacked(layer(8192, 4096, 8192), 132, 0)) << "no memory";
}

// Rows of W of a tile, and the tiling; or the persistent blocks.
std::string text(const LinearPlan& plan) {
  if (plan.persistent) {
    return "persistent " + std::to_string(plan.persistent->tile_m) + ", sharers " +
           std::to_string(plan.persistent->sharers);
  }
  const TileConfig& c = plan.tiles;
  return std::string(c.tiling.wide ? "wide " : "") + std::to_string(2 * c.box_rows) + " of " +
         std::to_string(c.tiling.tile_m) + " x " + std::to_string(c.tiling.rows) + ", blocks " +
         std::to_string(c.tiling.blocks) + ", turns " + std::to_string(c.turns) + ", parts " +
         std::to_string(c.parts) + ", sharers " + std::to_string(c.sharers);
}

// Projections of RWKV-7 of this width, and the first halves of its low-rank pairs.
std::vector<LinearArgs> projections(int64_t D, const std::vector<int64_t>& ranks, int rows) {
  std::vector<LinearArgs> layers(3, layer(D, D, rows));
  for (const int64_t rank : ranks) layers.push_back(layer(rank, D, rows));
  return layers;
}

TEST(LinearPlan, LayersOfAGroupHaveOneTilingAndAllTheirOutputs) {
  for (const int rows : {1, 8, 9, 17, 33, kMostGroupedRows}) {
    for (const auto& layers :
         {projections(1024, {}, rows), projections(2560, {96, 96, 64, 320}, rows),
          projections(4096, {480}, rows), projections(64, {}, rows)}) {
      for (const GpuRoom& gpu : {kH200, kSmall}) {
        const std::vector<TileConfig> configs = plan_group(layers, gpu);
        ASSERT_EQ(configs.size(), layers.size());
        for (size_t i = 0; i < layers.size(); ++i) {
          const TileConfig& c = configs[i];
          EXPECT_EQ(c.tiling, configs[0].tiling);
          EXPECT_NE(std::find(kTilings.begin(), kTilings.end(), c.tiling), kTilings.end());
          EXPECT_LE(2 * c.box_rows, c.tiling.tile_m);
          EXPECT_GE(int64_t{c.tiles} * 2 * c.box_rows, layers[i].outputs());
          EXPECT_EQ(c.turns * c.parts, pieces_of(layers[i].W));
          EXPECT_EQ(c.tiles_of_rows, 1);
        }
      }
    }
  }
}

// A group of one layer is divided as the layer is.
TEST(LinearPlan, AGroupFillsTheGpuAsALayerDoes) {
  const auto blocks = [](const std::vector<LinearArgs>& layers) {
    int count = 0;
    for (const TileConfig& config : plan_group(layers, kH200)) count += config.blocks();
    return count;
  };
  for (const auto& [D, K] : {std::pair{4096, 4096}, {10240, 2560}, {2560, 5120}, {1024, 1024}}) {
    const LinearArgs one = layer(D, K, 1);
    const TileConfig alone = plan_linear(one, kH200).tiles, grouped = plan_group({{one}}, kH200)[0];
    EXPECT_EQ(grouped.tiling, alone.tiling) << D << " x " << K;
    EXPECT_EQ(grouped.box_rows, alone.box_rows) << D << " x " << K;
  }
  EXPECT_LE(blocks(projections(1024, {}, 1)), 132) << "one block on a multiprocessor";
  EXPECT_GT(blocks(projections(1024, {}, 1)), 120);
  EXPECT_LE(blocks(projections(2560, {96, 96, 64, 320}, 1)), 3 * 132);
  EXPECT_GT(blocks(projections(2560, {96, 96, 64, 320}, 1)), 340);
}

// What layers of xlstm-7b and mamba-2.8b get on an H200. These were measured there: another choice
// wants another measurement.
TEST(LinearPlan, WhatWasMeasuredStaysChosen) {
  struct Row {
    int64_t N, K;
    int rows;
    const char* plan;
  };
  constexpr Row kRows[] = {
      {4096, 4096, 1, "128 of 128 x 8, blocks 1, turns 1, parts 4, sharers 1"},
      {4096, 4096, 32, "128 of 128 x 32, blocks 1, turns 1, parts 4, sharers 1"},
      {4096, 4096, 64, "128 of 128 x 64, blocks 1, turns 1, parts 4, sharers 1"},
      {4096, 4096, 128, "wide 64 of 64 x 128, blocks 1, turns 2, parts 2, sharers 1"},
      {4096, 4096, 256, "wide 128 of 128 x 128, blocks 1, turns 2, parts 2, sharers 2"},
      {4096, 4096, 2048, "persistent 128, sharers 2"},
      {21888, 4096, 1, "56 of 64 x 8, blocks 3, turns 1, parts 1, sharers 1"},
      {21888, 4096, 32, "56 of 64 x 32, blocks 3, turns 1, parts 1, sharers 1"},
      {21888, 4096, 64, "56 of 64 x 64, blocks 3, turns 1, parts 1, sharers 1"},
      {21888, 4096, 128, "168 of 192 x 128, blocks 1, turns 1, parts 1, sharers 1"},
      {21888, 4096, 256, "wide 176 of 176 x 256, blocks 1, turns 1, parts 1, sharers 1"},
      {21888, 4096, 2048, "persistent 192, sharers 2"},
      {4096, 10944, 1, "128 of 128 x 8, blocks 1, turns 1, parts 4, sharers 1"},
      {4096, 10944, 32, "128 of 128 x 32, blocks 1, turns 1, parts 4, sharers 1"},
      {4096, 10944, 64, "128 of 128 x 64, blocks 1, turns 1, parts 4, sharers 1"},
      {4096, 10944, 128, "64 of 64 x 128, blocks 2, turns 1, parts 4, sharers 1"},
      {4096, 10944, 256, "wide 128 of 128 x 128, blocks 1, turns 2, parts 2, sharers 2"},
      {4096, 10944, 2048, "persistent 128, sharers 2"},
      {50304, 4096, 1, "128 of 128 x 8, blocks 3, turns 1, parts 1, sharers 1"},
      {50304, 4096, 32, "128 of 128 x 32, blocks 3, turns 1, parts 1, sharers 1"},
      {50304, 4096, 64, "128 of 128 x 64, blocks 3, turns 1, parts 1, sharers 1"},
      {50304, 4096, 128, "192 of 192 x 128, blocks 1, turns 1, parts 1, sharers 1"},
      {50304, 4096, 256, "wide 192 of 192 x 256, blocks 1, turns 1, parts 1, sharers 1"},
      {50304, 4096, 2048, "persistent 192, sharers 2"},
      {10240, 2560, 1, "56 of 64 x 8, blocks 3, turns 1, parts 2, sharers 1"},
      {10240, 2560, 32, "56 of 64 x 32, blocks 3, turns 1, parts 2, sharers 1"},
      {10240, 2560, 64, "56 of 64 x 64, blocks 3, turns 1, parts 2, sharers 1"},
      {10240, 2560, 128, "wide 80 of 80 x 128, blocks 1, turns 2, parts 1, sharers 1"},
      {10240, 2560, 256, "wide 160 of 160 x 128, blocks 1, turns 2, parts 1, sharers 2"},
      {10240, 2560, 2048, "persistent 160, sharers 2"},
      {2560, 5120, 1, "64 of 64 x 8, blocks 3, turns 1, parts 8, sharers 1"},
      {2560, 5120, 32, "64 of 64 x 32, blocks 3, turns 1, parts 8, sharers 1"},
      {2560, 5120, 64, "80 of 128 x 64, blocks 1, turns 2, parts 4, sharers 1"},
      {2560, 5120, 128, "80 of 128 x 128, blocks 1, turns 2, parts 4, sharers 1"},
      {2560, 5120, 256, "wide 80 of 80 x 128, blocks 1, turns 4, parts 2, sharers 2"},
      {2560, 5120, 2048, "persistent 128, sharers 2"},
  };
  for (const Row& row : kRows) {
    EXPECT_EQ(text(plan_linear(layer(row.N, row.K, row.rows), kH200)), row.plan)
        << row.N << " x " << row.K << ", rows " << row.rows;
  }
}

}  // namespace recurve::testing::linear_plan_test
