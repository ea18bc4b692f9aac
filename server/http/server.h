#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/net/connections.h"
#include "server/net/tls_handshaker.h"
#include "server/serving/server_core.h"

namespace recurve {

// How long a client may take. What takes longer is closed without a word.
struct HttpTimes {
  std::chrono::milliseconds head{10'000};  // from a request's first byte to the end of its head
  std::chrono::milliseconds body{60'000};  // all of a body
  std::chrono::milliseconds idle{75'000};  // from one request's end to the next one's first byte
  // After so long without a byte a stream has a comment, so that no proxy takes it for dead.
  std::chrono::milliseconds silence{15'000};
  std::chrono::milliseconds linger{2'000};  // to read why it was refused, and to close
  std::chrono::hours age{24};  // of a connection: an answer that is begun later is its last
};

struct HttpOptions {
  std::string listen;                       // HOST:PORT, [::1]:PORT; port 0: any
  int64_t max_body_bytes = 16 << 20;        // of one request; more: 413
  int64_t max_response_bytes = 64 << 20;    // of all responses that are kept; the oldest go first
  std::shared_ptr<TlsHandshaker> tls = {};  // null: none
  std::vector<std::string> origins = {};    // see origin_problem()
  bool page = true;                         // whether there is one at /
  bool operators = true;      // whether what is theirs can be asked here: load, metrics
  bool metrics_only = false;  // /metrics and /health are all there is
  HttpTimes times = {};
};

// The door for clients of OpenAI's API and for browsers, over HTTP/1.1 and 1.0; what there is to
// ask for is in routes.cc. One thread serves all connections; texts are read and written on the
// threads that ServerCore has for all doors.
class HttpServer {
 public:
  // Listens. `serving` and `connections`, whose limits are those of all doors together, outlive the
  // server. Throws std::runtime_error with a sentence if it cannot listen.
  HttpServer(HttpOptions options, ServerCore& core, Connections& connections);
  ~HttpServer();

  int port() const;  // the one bound

  // Cancels what is left, closes all connections. After it, no call of its own is under way. Once.
  void shutdown();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace recurve
