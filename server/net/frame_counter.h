#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/net/frame_reader.h"
#include "server/observe/rate_budget.h"

namespace recurve {

// What comes on one connection of HTTP/2, counted by the heads of its frames and no more of it, so
// that what costs a client little and the server much ends before it costs much. One thread at a
// time.
class FrameCounter {
 public:
  using Time = RateBudget::Time;

  enum class Flood : uint8_t {
    kResets,    // streams that are opened and reset
    kPings,     // that are no answers
    kSettings,  // that are no answers
    kEmpty,     // data frames without data, and without an end
    kIgnored,   // priorities, and kinds that HTTP/2 does not know
    kHeaders,   // a block of headers without an end
    kBodies,    // messages that have come in part: see BodyCounter
  };
  static constexpr int kFloods = 7, kCounted = 5;
  // Of each kind that is counted, the first ones. Of resets that of all connections of a network:
  // with each the server has begun a call that nobody waits for, so a new connection does not begin
  // anew.
  static constexpr std::array<RateBudget::Rate, kCounted> kRates = {
      {{1000, 100}, {5000, 1000}, {100, 10}, {1000, 100}, {1000, 100}}};
  using Resets = RateBudgets;
  static std::shared_ptr<Resets> make_resets();
  // Of one block of headers, with all its frames. gRPC takes 8 KiB of metadata.
  static constexpr size_t kMostHeaderBytes = 64 << 10;
  static constexpr int kMostContinuations = 16;

  // network: Peer's, by which `resets` of all its connections count.
  explicit FrameCounter(std::shared_ptr<Resets> resets = make_resets(), std::string network = "");

  // The next bytes. What they are too many of; after that it is not to be asked again.
  std::optional<Flood> count(std::string_view bytes, Time now);

 private:
  std::optional<Flood> begin_frame(const FrameHead& frame, Time now);
  std::optional<Flood> count_block(uint8_t kind, uint8_t flags, size_t size);
  bool spend(Flood kind, Time now);

  FrameReader frames_{FrameReader::kPreface};
  size_t block_bytes_ = 0;
  int continuations_ = 0;
  const std::shared_ptr<Resets> resets_;
  const std::string network_;
  std::array<RateBudget, kCounted> budgets_ = {};  // the first of which is not used
};

// For logs and metrics: "resets", "pings", ...
const char* name_of(FrameCounter::Flood flood);

}  // namespace recurve
