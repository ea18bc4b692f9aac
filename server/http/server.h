#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/net/connections.h"
#include "server/net/tls_relay.h"
#include "server/request/serving.h"

namespace recurve {

struct HttpOptions {
  std::string listen;                     // HOST:PORT, [::1]:PORT; port 0: any
  int64_t max_body_bytes = 16 << 20;      // of one request; more: 413
  std::shared_ptr<TlsRelay> tls = {};     // null: none
  std::vector<std::string> origins = {};  // whose pages may use the server: "https://example.com"
};

// The door for clients of OpenAI's API, over HTTP/1.1: /v1/models, /v1/completions,
// /v1/chat/completions, /health. One thread serves all connections; texts are read and written on
// the threads that Serving has for all doors.
class HttpServer {
 public:
  // Listens. `serving` and `connections`, whose limits are those of all doors together, outlive the
  // server. Throws std::runtime_error with a sentence if it cannot listen.
  HttpServer(HttpOptions options, Serving& serving, Connections& connections);
  ~HttpServer();

  int port() const;  // the one bound

  // Cancels what is left, closes all connections. After it, no call of its own is under way. Once.
  void shutdown();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace recurve
