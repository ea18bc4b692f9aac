// Any bytes as HTTP/2 from a client: in pieces of any size they are counted in the same way.
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>

#include "server/net/frame_counter.h"

namespace {

// Bytes of whole frames up to where there is too much; 0: there is not.
size_t end_of(std::string_view all, size_t part, recurve::FrameCounter::Time now) {
  recurve::FrameCounter counter;
  for (size_t at = 0; at < all.size(); at += part) {
    if (counter.received(all.substr(at, part), now)) return at + part;
  }
  return 0;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  // The bytes again and again, so that there is a flood of them.
  std::string all;
  while (all.size() < 20'000) all.append(reinterpret_cast<const char*>(data), size);
  const auto now = recurve::FrameCounter::Time() + std::chrono::hours(1);
  const size_t single = end_of(all, 1, now), some = end_of(all, 1 + data[0], now);
  if ((single == 0) != (some == 0)) std::abort();
  if (some != 0 && (some < single || some > single + data[0])) std::abort();
  return 0;
}
