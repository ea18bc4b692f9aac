#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "server/net/connections.h"
#include "server/net/frame_counter.h"

namespace recurve {

class Metrics;

// What each network may still reset (Peer::network). Thread-safe.
class NetworkResets {
 public:
  std::shared_ptr<ResetBudget> of(const std::string& network);

 private:
  void forget(FrameBudget::Time now);

  std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<ResetBudget>> of_network_;
  FrameBudget::Time forgot_ = {};
};

// Ends a connection of HTTP/2 that floods the server, before gRPC has read what it sent: gRPC 1.51
// has no bound of its own for streams that are reset in quick succession (CVE-2023-44487) and for
// headers without an end, and no place to put one. One thread at a time.
class FrameGuard {
 public:
  // Metrics outlive it.
  FrameGuard(Peer peer, Metrics& metrics,
             std::shared_ptr<ResetBudget> resets = std::make_shared<ResetBudget>());

  // What has come. A text: the connection is over, and nothing of what came is to be read; the
  // text, which is empty after the first time, is the last that the client gets.
  std::optional<std::string> take(std::string_view bytes);

 private:
  void say(FrameCounter::Flood flood) const;

  const Peer peer_;
  Metrics& metrics_;
  FrameCounter counter_;
  bool ended_ = false;
};

}  // namespace recurve
