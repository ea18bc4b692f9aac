#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/net/connections.h"
#include "server/net/frame_counter.h"

namespace recurve {

class Metrics;

// Ends a connection of HTTP/2 that floods the server, before gRPC has read what it sent: gRPC 1.51
// has no bound of its own for streams that are reset in quick succession (CVE-2023-44487) and for
// headers without an end, and no place to put one. One thread at a time.
class FrameGuard {
 public:
  // Metrics outlive it.
  FrameGuard(Peer peer, Metrics& metrics,
             std::shared_ptr<FrameCounter::Resets> resets = FrameCounter::make_resets());

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
