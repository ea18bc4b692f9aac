#include "server/net/frame_guard.h"

#include <chrono>
#include <mutex>
#include <utility>

#include "server/observe/log.h"
#include "server/observe/metrics.h"

namespace recurve {
namespace {

// A GOAWAY frame with the error ENHANCE_YOUR_CALM (RFC 9113, sections 6.8 and 7). It may land
// inside another frame that gRPC is writing; the connection ends in any case.
std::string goaway_frame(std::string_view why) {
  std::string frame = {0, 0, static_cast<char>(8 + why.size()), 7, 0, 0, 0, 0, 0};
  frame += std::string_view("\x7f\xff\xff\xff\0\0\0\x0b", 8);
  return frame.append(why);
}

// The number of floods since the last log line; nothing if it is too early for the next line.
std::optional<int> floods_to_log() {
  constexpr std::chrono::seconds kInterval(1);
  static std::mutex mutex;
  static std::chrono::steady_clock::time_point logged = {};
  static int floods = 0;
  std::lock_guard lock(mutex);
  ++floods;
  const auto now = std::chrono::steady_clock::now();
  if (now - logged < kInterval) return {};
  logged = now;
  return std::exchange(floods, 0);
}

}  // namespace

FrameGuard::FrameGuard(Peer peer, Metrics& metrics, const FrameCounter::Shared& shared)
    : peer_(std::move(peer)),
      metrics_(metrics),
      counter_(shared, peer_.network,
               visitor_of(peer_.of_this_machine ? "" : peer_.network, peer_.number)) {}

std::optional<std::string> FrameGuard::received(std::string_view bytes) {
  if (ended_) return "";
  const auto flood = counter_.received(bytes, std::chrono::steady_clock::now());
  if (!flood) return {};
  ended_ = true;
  metrics_.flood_ended(static_cast<int>(*flood));
  log_flood(*flood);
  return goaway_frame(std::string("too many: ") + name_of(*flood));
}

void FrameGuard::log_flood(FrameCounter::Flood flood) const {
  const std::optional<int> times = floods_to_log();
  if (!times) return;
  log_event(LogLevel::kWarning, "flood",
            {{"peer", peer_.address}, {"of", name_of(flood)}, {"times", *times}});
}

}  // namespace recurve
