#pragma once
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "server/net/connections.h"
#include "server/net/tls_handshaker.h"
#include "server/observe/metrics.h"

namespace recurve {

// TLS for connections from the network; Unix sockets have none.
struct ListenerTls {
  std::shared_ptr<TlsHandshaker> handshaker = {};  // null: none
  TlsProtocol protocol = TlsProtocol::kHttp1;
};

// Accepts connections and passes them on. When the process has no descriptor left, connections wait
// in the system's queue until there is one.
class Listener {
 public:
  // Takes a connection: the non-blocking descriptor, which the callee closes, and its peer.
  using Take = std::function<void(int descriptor, const Peer& peer)>;

  // Listens, but accepts nothing yet. address: HOST:PORT, where HOST is a numeric address ([::1]
  // for IPv6) or a name, all of whose addresses are used; port 0: any free one. 0.0.0.0 and [::]
  // are all addresses of this machine, IPv4 and IPv6. unix:PATH or unix-abstract:NAME: a Unix
  // socket, whose file the destructor removes. Throws std::runtime_error with a sentence, which
  // names `flag` as what sets the address.
  explicit Listener(const std::string& address, const std::string& flag = "--listen");
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const { return port_; }  // 0: a Unix socket

  // Starts a thread that accepts as many connections as `connections` allows and closes the others.
  // Call once. The arguments outlive stop(). With TLS, `take` is called on the handshaker's thread
  // after the handshake.
  void start(Connections& connections, Metrics& metrics, Take take, ListenerTls tls = {});
  // No connection is taken after it. May be called repeatedly.
  void stop();

 private:
  void run();
  // False: no descriptor is left.
  bool accept_all(int listening);
  void receive(int descriptor, Peer peer);
  void refuse(int descriptor, const Peer& peer, Connections::Verdict why);
  void log_refused(const Peer& peer, Metrics::Refusal why);

  int port_ = 0;
  std::string path_;  // of the socket's file; empty: none
  std::vector<int> listening_;
  int wake_ = -1;  // readable once the thread has to stop
  Connections* connections_ = nullptr;
  Metrics* metrics_ = nullptr;
  Take take_;
  std::shared_ptr<TlsHandshaker> handshaker_;          // null: no TLS
  std::shared_ptr<TlsHandshaker::Receiver> receiver_;  // of its connections
  std::chrono::steady_clock::time_point logged_ = {};
  std::thread thread_;
};

}  // namespace recurve
