// How the tiles of a sequence are divided between the blocks of a cluster.
#include "kernels/cuda/sm90/matrix/tile_segments.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace recurve::cuda::sm90 {
namespace {

TEST(TileSegments, FollowOneAnotherFromTheFirstTileToTheLast) {
  for (int percent = 1; percent < 100; percent += 9) {
    for (int segments = 1; segments <= kMostSegments; ++segments) {
      for (int tiles = 0; tiles <= 3000; tiles = 2 * tiles + 1) {
        EXPECT_EQ(first_tile_of_segment(0, segments, tiles, percent), 0);
        EXPECT_EQ(first_tile_of_segment(segments, segments, tiles, percent), tiles);
        for (int i = 0; i < segments; ++i) {
          EXPECT_LE(first_tile_of_segment(i, segments, tiles, percent),
                    first_tile_of_segment(i + 1, segments, tiles, percent));
        }
      }
    }
  }
}

// What a block takes, in hundredths of a tile's time: the tiles before its own count `percent`.
TEST(TileSegments, EndAtOneTime) {
  for (const int percent : {10, 25, 40, 60}) {
    for (const int segments : {2, 3, 4}) {
      constexpr int kTiles = 1000;
      int least = 1 << 30, most = 0;
      for (int i = 0; i < segments; ++i) {
        const int first = first_tile_of_segment(i, segments, kTiles, percent);
        const int end = first_tile_of_segment(i + 1, segments, kTiles, percent);
        const int time = percent * first + 100 * (end - first);
        least = std::min(least, time);
        most = std::max(most, time);
      }
      EXPECT_LE(most - least, 200) << percent << " percent, " << segments << " segments";
      EXPECT_LT(most, 100 * kTiles);
    }
  }
}

TEST(TileSegments, AreAsManyAsTheMultiprocessorsTake) {
  EXPECT_EQ(tile_segments(64, 132), 2);  // 16 heads of 256 values, or 8 of 512
  EXPECT_EQ(tile_segments(66, 132), 2);
  EXPECT_EQ(tile_segments(67, 132), 1);
  EXPECT_EQ(tile_segments(32, 132), 4);  // 4 heads of 512
  EXPECT_EQ(tile_segments(1, 132), kMostSegments);
  EXPECT_EQ(tile_segments(1000, 132), 1);
}

}  // namespace
}  // namespace recurve::cuda::sm90
