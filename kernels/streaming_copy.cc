#include "kernels/streaming_copy.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace recurve {

#if defined(__SSE2__)
namespace {

constexpr size_t kLine = 64;
// Below this the caches are the better place.
constexpr size_t kStreamFrom = size_t{64} << 10;

// Past the caches, in whole lines. `to` begins a line; `from` need not.
void stream_lines(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kLine) {
    __m128i part[4];
    for (size_t i = 0; i < 4; ++i) {
      part[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at) + i);
    }
    for (size_t i = 0; i < 4; ++i) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at) + i, part[i]);
    }
  }
  _mm_sfence();  // before anybody is told that it is done
}

}  // namespace

void streaming_copy(void* to, const void* from, size_t bytes) {
  if (bytes < kStreamFrom) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return;
  }
  auto* const out = static_cast<std::byte*>(to);
  const auto* const in = static_cast<const std::byte*>(from);
  const size_t into = reinterpret_cast<uintptr_t>(to) % kLine;
  const size_t head = into == 0 ? 0 : kLine - into;
  const size_t lines = (bytes - head) / kLine * kLine;
  std::memcpy(out, in, head);
  stream_lines(out + head, in + head, lines);
  std::memcpy(out + head + lines, in + head + lines, bytes - head - lines);
}
#else
void streaming_copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
#endif

}  // namespace recurve
