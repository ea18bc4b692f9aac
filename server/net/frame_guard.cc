#include "server/net/frame_guard.h"

#include <chrono>
#include <mutex>
#include <utility>

#include "server/observe/log.h"
#include "server/observe/metrics.h"

namespace recurve {
namespace {

// The last frame that the client gets: GOAWAY, whose error is ENHANCE_YOUR_CALM (RFC 9113, sections
// 6.8 and 7). It may stand in the midst of another one that gRPC is writing; the connection is over
// then all the same.
std::string goodbye(std::string_view why) {
  std::string frame = {0, 0, static_cast<char>(8 + why.size()), 7, 0, 0, 0, 0, 0};
  frame += std::string_view("\x7f\xff\xff\xff\0\0\0\x0b", 8);
  return frame.append(why);
}

// How many floods the next line in the log is about; nothing: it is too early for one.
std::optional<int> floods_to_say() {
  constexpr std::chrono::seconds kSayFlood(1);
  static std::mutex mutex;
  static std::chrono::steady_clock::time_point said = {};
  static int since = 0;  // that were not said
  std::lock_guard lock(mutex);
  ++since;
  const auto now = std::chrono::steady_clock::now();
  if (now - said < kSayFlood) return {};
  said = now;
  return std::exchange(since, 0);
}

}  // namespace

FrameGuard::FrameGuard(Peer peer, Metrics& metrics, const Shared& shared)
    : peer_(std::move(peer)),
      metrics_(metrics),
      counter_(shared.resets, peer_.network),
      bodies_(shared.bodies, visitor_of(peer_.of_this_machine ? "" : peer_.network, peer_.number)) {
}

std::optional<std::string> FrameGuard::take(std::string_view bytes) {
  if (ended_) return "";
  auto flood = counter_.count(bytes, std::chrono::steady_clock::now());
  if (!flood && !bodies_.received(bytes)) flood = FrameCounter::Flood::kBodies;
  if (!flood) return {};
  ended_ = true;
  metrics_.flood_ended(static_cast<int>(*flood));
  say(*flood);
  return goodbye(std::string("too many: ") + name_of(*flood));
}

void FrameGuard::say(FrameCounter::Flood flood) const {
  const std::optional<int> times = floods_to_say();
  if (!times) return;
  log_event(LogLevel::kWarning, "flood",
            {{"peer", peer_.address}, {"of", name_of(flood)}, {"times", *times}});
}

}  // namespace recurve
