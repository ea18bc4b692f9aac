#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/net/body_counter.h"
#include "server/net/connections.h"
#include "server/net/frame_counter.h"

namespace recurve {

class Metrics;

// Ends a connection of HTTP/2 that floods the server, before gRPC has read what it sent: gRPC 1.51
// has no bound of its own for streams that are reset in quick succession (CVE-2023-44487), for
// headers without an end and, of each client, for messages that have come in part, and no place to
// put one. One thread reads at a time, and one writes.
class FrameGuard {
 public:
  // What all connections of a server have together.
  struct Shared {
    std::shared_ptr<FrameCounter::Resets> resets = FrameCounter::make_resets();
    // Of messages that have come in part.
    std::shared_ptr<ByteBudget> bodies = std::make_shared<ByteBudget>(INT64_MAX);
  };
  // Metrics outlive it.
  FrameGuard(Peer peer, Metrics& metrics, const Shared& shared);

  // What has come. A text: the connection is over, and nothing of what came is to be read; the
  // text, which is empty after the first time, is the last that the client gets.
  std::optional<std::string> take(std::string_view bytes);
  // What has been sent.
  void sent(std::string_view bytes) { bodies_.sent(bytes); }

 private:
  void say(FrameCounter::Flood flood) const;

  const Peer peer_;
  Metrics& metrics_;
  FrameCounter counter_;
  BodyCounter bodies_;
  bool ended_ = false;
};

}  // namespace recurve
