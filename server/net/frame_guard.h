#pragma once
#include <sys/types.h>

#include <array>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "server/net/connections.h"
#include "server/net/frame_counter.h"

namespace recurve {

class Metrics;

// Ends connections of HTTP/2 that flood the server, before gRPC has read what they sent: gRPC 1.51
// has no bound of its own for streams that are reset in quick succession (CVE-2023-44487) and for
// headers without an end, and no place to put one.
//
// gRPC reads its sockets by recvmsg(), which this library defines: the program's own goes before
// the system's, as the linker has it, looks at what the system's has read where the socket is
// guarded, and hands it on. So nothing is copied, and no thread stands between; what other sockets
// read is not looked at. Thread-safe.
class FrameGuard {
 public:
  // The one of this process.
  static FrameGuard& of_process();

  // Whether recvmsg() is the one that looks, which another library may have defined before.
  static bool works();

  // Looks at what comes at `descriptor`, a connection that nothing has been read from, from now on
  // and until it is closed. Metrics outlive it.
  void guard(int descriptor, const Peer& peer, Metrics& metrics);

  // What has been read there. False: it is ended, and nothing of it is to be read.
  bool take(int descriptor, const char* bytes, size_t size);

 private:
  struct Guarded {
    ino_t socket = 0;  // another one's, where the descriptor has been closed and opened again
    Peer peer;
    Metrics* metrics = nullptr;
    FrameCounter counter = {};
    bool ended = false;
  };
  // Descriptors are closed by gRPC, and nobody says when: what has gone goes with its number, and
  // now and then.
  struct Shard {
    std::mutex mutex;
    std::unordered_map<int, std::shared_ptr<Guarded>> guarded;
    size_t swept_at = 64;  // entries at which it is looked which are gone
  };

  std::shared_ptr<Guarded> find(int descriptor);
  void end(int descriptor, Guarded& connection, FrameCounter::Flood flood);

  std::array<Shard, 16> shards_;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point said_ = {};
  int since_ = 0;  // floods that were not said
};

}  // namespace recurve
