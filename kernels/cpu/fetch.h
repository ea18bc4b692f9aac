#pragma once
#include <cstddef>
#include <cstdint>

namespace recurve::cpu {

// Weights that come from memory are fetched line after line as they stand there, so far ahead of
// what is read: a tile reads several rows at once, in which the processor finds no order of its
// own.
inline constexpr int64_t kLine = 64;  // bytes

// Into the second cache, as rows whose length is a power of two drive each other out of the first.
struct FetchFar {
  static constexpr int64_t kAhead = 32 * 1024;
  static constexpr int kLocality = 1;
};
// Into the first cache, for tiles of few bytes, which have none too many rows there.
struct FetchNear {
  static constexpr int64_t kAhead = 8 * 1024;
  static constexpr int kLocality = 3;
};
inline constexpr int64_t kNearTile = 6 * 1024;  // bytes of a tile that is fetched near, at most

template <int64_t LINES, class Fetch = FetchFar>
[[gnu::always_inline]] inline void fetch_lines(const std::byte* from) {
#pragma GCC unroll 16
  for (int64_t line = 0; line < LINES; ++line) {
    __builtin_prefetch(from + line * kLine, 0, Fetch::kLocality);
  }
}

}  // namespace recurve::cpu
