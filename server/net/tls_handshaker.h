#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "server/net/connections.h"
#include "server/net/tls.h"
#include "server/net/tls_socket.h"

namespace recurve {

// Shakes hands with clients of TLS for all doors, on a thread of its own: a door gets a connection
// once that is done, as one at which SocketHooks carry what is within TLS. Thread-safe.
class TlsHandshaker {
 public:
  // Throws std::runtime_error with a sentence where the files are of no use. They are looked at
  // again each second, for connections to come.
  explicit TlsHandshaker(TlsFiles files);
  ~TlsHandshaker();
  TlsHandshaker(const TlsHandshaker&) = delete;
  TlsHandshaker& operator=(const TlsHandshaker&) = delete;

  // A door, as long as it takes connections.
  class Door {
   public:
    using Take = std::function<void(int descriptor, const Peer& peer)>;
    // take: on the handshaker's thread; the descriptor, which does not block, is the taker's to
    // close.
    Door(TlsProtocol protocol, Take take) : protocol_(protocol), take_(std::move(take)) {}
    // Nothing is taken after it.
    void close();

   private:
    friend class TlsHandshaker;
    bool take(int descriptor, const Peer& peer);

    const TlsProtocol protocol_;
    std::mutex mutex_;
    Take take_;  // empty: closed
  };

  // Takes a connection of `peer` that has been accepted, whose descriptor does not block.
  void accept(int descriptor, Peer peer, std::shared_ptr<Door> door);

 private:
  struct Accepted {
    int descriptor;
    Peer peer;
    std::shared_ptr<Door> door;
  };
  struct Handshake {
    TlsSocket::Connection tls;
    Peer peer;
    std::shared_ptr<Door> door;
    std::chrono::steady_clock::time_point deadline;
  };
  using Handshakes = std::unordered_map<int, Handshake>;

  void work();
  void wait_for_events();
  void begin_new();
  void go_on(int descriptor);
  void hand_over(Handshakes::iterator done);
  void fail(Handshakes::iterator failed, const std::string& problem);
  void look_at_the_time();
  void watch(int descriptor) const;
  void say_failed(const Peer& peer, const std::string& problem);

  TlsSettings settings_;
  int epoll_ = -1, wake_ = -1;

  std::mutex mutex_;
  std::vector<Accepted> accepted_;  // and not begun with
  bool ending_ = false;

  // On the thread.
  Handshakes handshakes_;   // by descriptor
  std::vector<int> ready_;  // descriptors whose handshakes may go on
  std::chrono::steady_clock::time_point looked_ = {}, said_ = {};
  int failures_ = 0;  // since that was said
  std::thread thread_;
};

}  // namespace recurve
