#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "server/net/connections.h"
#include "server/net/frame_counter.h"

namespace recurve {

class Metrics;

// Ends an HTTP/2 connection that floods the server, before gRPC reads what it sent. gRPC 1.51 has
// no limit on streams reset in quick succession (CVE-2023-44487), on headers that do not end and on
// one client's incomplete messages, and no hook to add one. One thread reads at a time, and one
// writes.
class FrameGuard {
 public:
  // Metrics outlive it.
  FrameGuard(Peer peer, Metrics& metrics, const FrameCounter::Shared& shared);

  // The next bytes from the client. Returns a text if the connection has ended: then none of the
  // bytes may be read, and the text, which is empty after the first time, is the last that the
  // client gets.
  std::optional<std::string> received(std::string_view bytes);
  // The next bytes from the server.
  void sent(std::string_view bytes) { counter_.sent(bytes); }

 private:
  void log_flood(FrameCounter::Flood flood) const;

  const Peer peer_;
  Metrics& metrics_;
  FrameCounter counter_;
  bool ended_ = false;
};

}  // namespace recurve
