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
#include "server/net/tls_pipe.h"

namespace recurve {

// Ends TLS for all doors, on a thread of its own: a door gets a connection once its handshake is
// done, as one of this machine that carries what is within TLS. Thread-safe.
class TlsRelay {
 public:
  // Throws std::runtime_error with a sentence where the files are of no use. They are looked at
  // again each second, for connections to come.
  explicit TlsRelay(TlsFiles files);
  // What doors have said still goes on its way, for two seconds at most.
  ~TlsRelay();
  TlsRelay(const TlsRelay&) = delete;
  TlsRelay& operator=(const TlsRelay&) = delete;

  // A door, as long as it takes connections.
  class Door {
   public:
    using Take = std::function<void(int descriptor, const Peer& peer)>;
    // take: on the relay's thread; the descriptor, which does not block, is the taker's to close.
    Door(TlsProtocol protocol, Take take) : protocol_(protocol), take_(std::move(take)) {}
    // Nothing is taken after it.
    void close();

   private:
    friend class TlsRelay;
    bool take(int descriptor, const Peer& peer);

    const TlsProtocol protocol_;
    std::mutex mutex_;
    Take take_;  // empty: closed
  };

  // What the next connection is to be called: unique on this machine.
  std::string new_name();
  // Takes a connection of `peer` that has been accepted. name: what the door sees as its peer's, an
  // abstract one of this machine.
  void accept(int descriptor, std::string name, Peer peer, std::shared_ptr<Door> door);

 private:
  struct Accepted {
    int descriptor;
    std::string name;
    Peer peer;
    std::shared_ptr<Door> door;
  };
  struct Connection {
    TlsPipe pipe;
    Peer peer;
    const std::shared_ptr<Door> door;
  };

  void work();
  void wait_for_events(std::chrono::milliseconds most);
  void begin_new();
  void run(uint64_t number);
  void look_at_the_time();
  void watch(int descriptor, uint64_t number) const;
  void say_failed(const Peer& peer, const std::string& problem);

  TlsSettings settings_;
  int epoll_ = -1, wake_ = -1;

  std::mutex mutex_;
  std::vector<Accepted> accepted_;  // and not begun with
  bool ending_ = false;
  uint64_t names_ = 0;

  // On the thread.
  std::unordered_map<uint64_t, std::unique_ptr<Connection>> connections_;
  uint64_t last_number_ = 0;
  std::vector<uint64_t> ready_;  // to be run
  std::chrono::steady_clock::time_point looked_ = {}, said_ = {};
  int failures_ = 0;  // since that was said
  std::thread thread_;
};

}  // namespace recurve
