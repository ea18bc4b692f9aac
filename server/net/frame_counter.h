#pragma once
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace recurve {

// What comes on one connection of HTTP/2, counted by the nine bytes in front of each frame (RFC
// 9113, section 4.1) and no more of it, so that what costs a client little and the server much ends
// before it costs much. One thread at a time.
class FrameCounter {
 public:
  using Time = std::chrono::steady_clock::time_point;

  enum class Flood : uint8_t {
    kResets,    // streams that are opened and reset
    kPings,     // that are no answers
    kSettings,  // that are no answers
    kEmpty,     // data frames without data, and without an end
    kIgnored,   // priorities, and kinds that HTTP/2 does not know
    kHeaders,   // a block of headers without an end
  };
  static constexpr int kFloods = 6;
  // Of each kind but the last: how many at once, and how many each second.
  struct Rate {
    double at_once, per_second;
  };
  static constexpr std::array<Rate, kFloods - 1> kRates = {
      {{500, 100}, {10'000, 1000}, {100, 10}, {1000, 100}, {1000, 100}}};
  // Of one block of headers, with all its frames. gRPC takes 8 KiB of metadata.
  static constexpr size_t kMostHeaderBytes = 64 << 10;
  static constexpr int kMostContinuations = 16;

  // The next bytes. What they are too many of; after that it is not to be asked again.
  std::optional<Flood> count(std::string_view bytes, Time now);

 private:
  struct Bucket {
    double used = 0;
    Time at = {};
  };

  size_t finish_head(std::string_view bytes);
  std::optional<Flood> begin_frame(Time now);
  std::optional<Flood> count_block(uint8_t kind, uint8_t flags, size_t size);
  bool spend(Flood kind, Time now);

  static constexpr size_t kPreface = 24, kHead = 9;
  size_t to_skip_ = kPreface;  // of the preface, or of a frame's payload
  std::array<uint8_t, kHead> head_ = {};
  size_t head_bytes_ = 0;
  size_t block_bytes_ = 0;
  int continuations_ = 0;
  std::array<Bucket, kFloods - 1> buckets_ = {};
};

// For logs and metrics: "resets", "pings", ...
const char* name_of(FrameCounter::Flood flood);

}  // namespace recurve
