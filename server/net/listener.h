#pragma once
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "server/net/connections.h"
#include "server/net/tls_handshaker.h"
#include "server/observe/metrics.h"

namespace recurve {

// TLS for connections from the network; those of this machine's own sockets have none.
struct ListenerTls {
  std::shared_ptr<TlsHandshaker> handshaker = {};  // null: none
  TlsProtocol protocol = TlsProtocol::kHttp1;
};

// Accepts connections and gives them away. Lives on where the process has no descriptor left:
// what cannot be accepted waits in the system's queue until there is one.
class Listener {
 public:
  // Takes a connection of `peer`: its descriptor, which does not block, is the taker's to close.
  using Take = std::function<void(int descriptor, const Peer& peer)>;

  // Listens, but accepts nothing yet. address: HOST:PORT, HOST a numeric address, [::1] for IPv6,
  // or a name, all of whose addresses are listened on; port 0: any free one. 0.0.0.0 and [::] are
  // all addresses of this machine, of both kinds. unix:PATH or unix-abstract:NAME: a socket of this
  // machine, whose file goes with the Listener. Throws std::runtime_error with a sentence.
  explicit Listener(const std::string& address);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const { return port_; }  // 0: a socket of this machine

  // Begins to accept, on a thread of its own, what `connections` has room for; the rest is closed
  // at once. Once. The arguments outlive stop().
  // Where there is TLS, it takes them on the handshaker's thread, once they have shaken hands.
  void start(Connections& connections, Metrics& metrics, Take take, ListenerTls tls = {});
  // Nothing is taken after it. Any number of times.
  void stop();

 private:
  void run();
  // False where there is no descriptor for it.
  bool accept_all(int listening);
  void receive(int descriptor, Peer peer);
  void refuse(int descriptor, const Peer& peer, Connections::Verdict why);
  void say_refused(const Peer& peer, Metrics::Refusal why);

  int port_ = 0;
  std::string path_;  // of the socket's file; empty: none
  std::vector<int> listening_;
  int wake_ = -1;  // readable once it is to stop
  Connections* connections_ = nullptr;
  Metrics* metrics_ = nullptr;
  Take take_;
  std::shared_ptr<TlsHandshaker> handshaker_;    // null: no TLS
  std::shared_ptr<TlsHandshaker::Door> secure_;  // takes what it gives
  std::chrono::steady_clock::time_point said_ = {};
  std::thread thread_;
};

}  // namespace recurve
