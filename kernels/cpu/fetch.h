#pragma once
#include <cstddef>
#include <cstdint>

namespace recurve::cpu {

// Weights that come from memory are fetched line after line as they stand there, so far ahead of
// what is read: a tile reads several rows at once, in which the processor finds no order of its
// own. They go to the second cache, as rows whose length is a power of two drive each other out of
// the first.
inline constexpr int64_t kLine = 64;  // bytes
inline constexpr int64_t kFetchAhead = 32 * 1024;

template <int64_t LINES>
[[gnu::always_inline]] inline void fetch_lines(const std::byte* from) {
#pragma GCC unroll 16
  for (int64_t line = 0; line < LINES; ++line) __builtin_prefetch(from + line * kLine, 0, 1);
}

}  // namespace recurve::cpu
