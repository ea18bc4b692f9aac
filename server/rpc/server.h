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

// A service that comes by the same port, and is not of the protocol of our own.
struct RpcService {
  const char* name;  // in full, for health
  // What it returns lives as long as the server; the context outlives it.
  std::function<std::shared_ptr<grpc::Service>(ServiceContext& context)> make;
};

// gRPC counts a message's bytes in 31 bits.
inline constexpr int64_t kMostMessageBytes = (int64_t{1} << 31) - 1;

struct RpcOptions {
  std::string listen = "127.0.0.1:50051";  // HOST:PORT, [::1]:PORT or unix:PATH; port 0: any
  // Of one request message; larger: RESOURCE_EXHAUSTED. At most kMostMessageBytes.
  int64_t max_message_bytes = 16 << 20;
  bool request_compression = false;  // else UNIMPLEMENTED: a small message may become a large one
  bool reflection = true;
  bool operators = true;    // whether what is theirs can be asked here: load, drain
  bool admin = false;       // it is a listener of theirs; where there are keys, reflection is there
  int max_connections = 0;  // 0: what the limit of open files leaves, 10,000 at most
  int max_connections_by_address = 0;       // 0: half of all
  std::shared_ptr<TlsHandshaker> tls = {};  // null: none
  int max_streams = 1024;                   // concurrent calls of one connection; more of them wait
};

// gRPC's door: listens, and turns calls into requests and events into messages.
class RpcServer {
 public:
  // Listens, with `others` beside its own services; health says NOT_SERVING until `serving`, which
  // outlives the server, does. Throws std::runtime_error with a sentence if it cannot listen, or an
  // option is out of its range.
  RpcServer(RpcOptions options, ServerCore& core, std::vector<RpcService> others = {});
  ~RpcServer();

  int port() const;  // the one bound; 0 for a unix socket
  // Of which there may be so many, of all doors together.
  Connections& connections();

  // Cancels what is left, closes all connections. After it, no call is under way. Once; any thread.
  void shutdown();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace recurve
