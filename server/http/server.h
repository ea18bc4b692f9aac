#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/http/routes.h"
#include "server/net/connections.h"
#include "server/net/tls_handshaker.h"
#include "server/serving/server_core.h"

namespace recurve {

// How long a client may take. A connection that takes longer is closed without a response.
struct HttpTimes {
  std::chrono::milliseconds head{10'000};  // from a request's first byte to the end of its head
  std::chrono::milliseconds body{60'000};  // the complete body
  std::chrono::milliseconds idle{75'000};  // from one request's end to the next one's first byte
  // A stream that was silent for so long sends a comment, so that no proxy closes it.
  std::chrono::milliseconds silence{15'000};
  std::chrono::milliseconds linger{2'000};  // to read a refusal, and to close
  std::chrono::hours age{24};  // of a connection: an answer that begins later is its last
};

struct HttpOptions {
  std::string listen;                       // HOST:PORT, [::1]:PORT; port 0: any
  std::string listen_flag = "--http";       // sets it, for messages
  int64_t max_body_bytes = 16 << 20;        // of one request; more: 413
  std::shared_ptr<TlsHandshaker> tls = {};  // null: none
  std::vector<std::string> origins = {};    // see origin_problem()
  bool operators = true;                    // whether operators may use it: load, metrics
  bool counted = true;                      // whether its connections count in the metrics
  HttpTimes times = {};
};

// An HTTP/1.1 and 1.0 server of the resources that it is given. One thread serves all connections;
// texts are read and written on the threads that ServerCore has for all frontends.
class HttpServer {
 public:
  // Listens. `serving` and `connections`, whose limits are those of all frontends together, outlive
  // the server. Throws std::runtime_error with a sentence if it cannot listen.
  HttpServer(HttpOptions options, std::vector<HttpApi> apis, ServerCore& core,
             Connections& connections);
  ~HttpServer();

  int port() const;  // the one bound

  // Cancels the requests under way and closes all connections. Returns once none of its calls is
  // under way. Once.
  void shutdown();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace recurve
