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

// Asks for some floats that are read soon, of a row: where rows are further apart than a page, the
// processor does not foresee the next. It can wait for a dozen lines at once, so one row at a time
// is to be asked for. Not to be called from a function that does nothing else, and is not inlined:
// g++ takes that for one without an effect, and leaves calls of it out.
template <int LOCALITY = FetchNear::kLocality>
[[gnu::always_inline]] inline void fetch_row(const float* from, int64_t count) {
  constexpr int64_t kFloats = kLine / int64_t{sizeof(float)};
  for (int64_t at = 0; at < count; at += kFloats) __builtin_prefetch(from + at, 0, LOCALITY);
}

}  // namespace recurve::cpu
