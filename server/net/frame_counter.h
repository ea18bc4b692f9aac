#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "server/net/body_counter.h"
#include "server/net/frame_reader.h"
#include "server/observe/rate_budget.h"

namespace recurve {

// Counts the frames of one HTTP/2 connection that cost the client little and the server much, so
// that the connection can be ended before gRPC reads them. One thread may call received() while
// another calls sent().
class FrameCounter {
 public:
  using Time = RateBudget::Time;

  enum class Flood : uint8_t {
    kResets,    // streams opened and reset
    kPings,     // without the ACK flag
    kSettings,  // without the ACK flag
    kEmpty,     // data frames without data and without END_STREAM
    kIgnored,   // priorities, and frames of unknown types
    kHeaders,   // a header block that does not end
    kBodies,    // incomplete messages: see BodyCounter
  };
  static constexpr int kRated = 5;  // the first ones, which have a rate
  // The rate of resets is per network and not per connection: the server starts a call for each,
  // and a new connection must not start with a new budget.
  static constexpr std::array<RateBudget::Rate, kRated> kRates = {
      {{1000, 100}, {5000, 1000}, {100, 10}, {1000, 100}, {1000, 100}}};
  // Of one header block, with all its frames. gRPC takes 8 KiB of metadata.
  static constexpr size_t kMostHeaderBytes = 64 << 10;
  static constexpr int kMostContinuations = 16;

  // What all connections of a server share.
  struct Shared {
    std::shared_ptr<RateBudgets> resets = std::make_shared<RateBudgets>(kRates[0]);
    std::shared_ptr<ByteBudget> bodies = std::make_shared<ByteBudget>(INT64_MAX);
  };
  // network: Peer::network, the key in `resets`. share: Identity::share(), the key in `bodies`.
  explicit FrameCounter(const Shared& shared, std::string network = "", TenantId share = 0);
  FrameCounter() : FrameCounter(Shared()) {}

  // The next bytes from the client. Returns the limit that they exceed; after that no more calls.
  std::optional<Flood> received(std::string_view bytes, Time now);
  // The next bytes from the server.
  void sent(std::string_view bytes);

 private:
  std::optional<Flood> begin_frame(const FrameHead& frame, Time now);
  std::optional<Flood> count_block(const FrameHead& frame);
  bool spend(Flood kind, Time now);

  FrameReader in_{FrameReader::kPreface}, out_{0};
  size_t block_bytes_ = 0;
  int continuations_ = 0;
  const std::shared_ptr<RateBudgets> resets_;
  const std::string network_;
  std::array<RateBudget, kRated> budgets_ = {};  // that of resets is unused
  std::mutex bodies_mutex_;
  BodyCounter bodies_;
};

// For logs and metrics: "resets", "pings", ...
const char* name_of(FrameCounter::Flood flood);

}  // namespace recurve
