#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/net/connections.h"
#include "server/net/tls_handshaker.h"
#include "server/serving/server_core.h"

namespace grpc {
class Service;
}

namespace recurve {

struct ServiceContext;

// A service at a port.
struct RpcService {
  const char* name;      // PACKAGE.SERVICE, for health checks
  bool durable = false;  // NOT_SERVING while --state-dir is lost
  // The result lives as long as the server; the context outlives it.
  std::function<std::shared_ptr<grpc::Service>(ServiceContext& context)> make;
};

// gRPC counts a message's bytes in 31 bits.
inline constexpr int64_t kMostMessageBytes = (int64_t{1} << 31) - 1;

struct RpcOptions {
  std::string listen = "127.0.0.1:50051";  // HOST:PORT, [::1]:PORT or unix:PATH; port 0: any
  std::string listen_flag = "--listen";    // sets it, for messages
  // Of one request message; a larger one: RESOURCE_EXHAUSTED. At most kMostMessageBytes.
  int64_t max_message_bytes = 16 << 20;
  bool request_compression =
      false;  // else UNIMPLEMENTED: a small message could expand to a large one
  bool reflection = true;
  bool operators = true;               // whether calls for operators are answered here: load, drain
  bool admin = false;                  // the listener of --admin; with keys, only it has reflection
  int max_connections = 0;             // 0: see connection_limits()
  int max_connections_by_address = 0;  // 0: half of all
  std::shared_ptr<TlsHandshaker> tls = {};  // null: none
  int max_streams = 1024;                   // concurrent calls per connection; further ones wait
};

// The gRPC frontend: listens, and converts calls to requests and events to messages.
class RpcServer {
 public:
  // Listens, with `others` in addition to its own services. Health is NOT_SERVING until `serving`
  // serves, which outlives the server. Throws std::runtime_error with a sentence if it cannot
  // listen or an option is out of range.
  RpcServer(RpcOptions options, ServerCore& core, const std::vector<RpcService>& others = {});
  ~RpcServer();

  int port() const;  // the bound one; 0 for a Unix socket
  // Those of all frontends count here.
  Connections& connections();

  // Cancels the remaining calls and closes all connections. Call once, from any thread.
  void shutdown();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace recurve
