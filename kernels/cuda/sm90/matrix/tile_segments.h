#pragma once

// How the tiles of a sequence are divided between the blocks of a cluster of tile_scan.h. Each
// brings the state to its own tiles, through all before them, without their outputs: that takes a
// part of the time, so the first block has the most tiles and all end at about one time. Follows
// from numbers alone, so that it can be tested without a GPU.
namespace recurve::cuda::sm90 {

constexpr int kMostSegments = 4;
// Of a tile's time, what its state alone takes: measured, and changes little between 25 and 55.
constexpr int kStatePercent = 50;

// How many segments fill the multiprocessors, where there are so many blocks without them. More
// blocks than these would wait for one another.
inline int tile_segments(int blocks, int multiprocessors) {
  int segments = 1;
  while (2 * segments <= kMostSegments && 2 * segments * blocks <= multiprocessors) segments *= 2;
  return segments;
}

#ifdef __CUDACC__
#define RECURVE_ON_BOTH __host__ __device__
#else
#define RECURVE_ON_BOTH
#endif

// The first tile of a segment, of so many tiles in all: with number `segments`, the end of the last
// one. percent: of a tile's time, what its state alone takes.
RECURVE_ON_BOTH inline int first_tile_of_segment(int segment, int segments, int tiles,
                                                 int percent) {
  if (segment == segments) return tiles;
  const float rest = static_cast<float>(100 - percent) / 100;
  float left = 1, left_here = 1;  // of the tiles, behind all segments and behind those before
  for (int i = 0; i < segments; ++i) {
    if (i == segment) left_here = left;
    left *= rest;
  }
  const float share = (1 - left_here) / (1 - left);
  return static_cast<int>(share * static_cast<float>(tiles) + 0.5f);
}

#undef RECURVE_ON_BOTH

}  // namespace recurve::cuda::sm90
