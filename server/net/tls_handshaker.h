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

// Does the TLS handshakes of all listeners on one thread. A listener gets a connection after its
// handshake; from then on SocketHooks encrypt and decrypt its bytes. Thread-safe.
class TlsHandshaker {
 public:
  // Throws std::runtime_error with a sentence if the files cannot be used. Checks each second
  // whether they have changed, for new connections.
  explicit TlsHandshaker(TlsFiles files);
  ~TlsHandshaker();
  TlsHandshaker(const TlsHandshaker&) = delete;
  TlsHandshaker& operator=(const TlsHandshaker&) = delete;

  // Gets connections after their handshake, until close().
  class Receiver {
   public:
    using Take = std::function<void(int descriptor, const Peer& peer)>;
    // take: called on the handshaker's thread; closes the non-blocking descriptor.
    Receiver(TlsProtocol protocol, Take take) : protocol_(protocol), take_(std::move(take)) {}
    // `take` is not called after it.
    void close();

   private:
    friend class TlsHandshaker;
    bool take(int descriptor, const Peer& peer);

    const TlsProtocol protocol_;
    std::mutex mutex_;
    Take take_;  // empty: closed
  };

  // Takes an accepted connection with a non-blocking descriptor.
  void accept(int descriptor, Peer peer, std::shared_ptr<Receiver> receiver);

 private:
  struct Accepted {
    int descriptor;
    Peer peer;
    std::shared_ptr<Receiver> receiver;
  };
  struct Handshake {
    TlsSocket::Connection tls;
    Peer peer;
    std::shared_ptr<Receiver> receiver;
    std::chrono::steady_clock::time_point deadline;
  };
  using Handshakes = std::unordered_map<int, Handshake>;

  void work();
  void wait_for_events();
  void begin_new();
  void continue_handshake(int descriptor);
  void hand_over(Handshakes::iterator done);
  void fail(Handshakes::iterator failed, const std::string& problem);
  void check_periodically();
  void watch(int descriptor) const;
  void log_failure(const Peer& peer, const std::string& problem);

  TlsSettings settings_;
  int epoll_ = -1, wake_ = -1;

  std::mutex mutex_;
  std::vector<Accepted> accepted_;  // not started yet
  bool ending_ = false;

  // Of the thread.
  Handshakes handshakes_;   // by descriptor
  std::vector<int> ready_;  // descriptors whose handshakes can continue
  std::chrono::steady_clock::time_point checked_ = {}, logged_ = {};
  int failures_ = 0;  // since the last log line
  std::thread thread_;
};

}  // namespace recurve
