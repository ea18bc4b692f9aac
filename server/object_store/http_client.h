#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/object_store/aws_credentials.h"

namespace recurve {

struct HttpClientOptions {
  std::string ca_file = {};  // PEM of the authorities that sign for servers; empty: the system's
  std::chrono::milliseconds connect_timeout{3'000};
  // A request ends when less than a KiB a second was transferred for so long.
  std::chrono::seconds most_silence{10};
};

struct HttpCall {
  std::string method = "GET", url = {};
  std::vector<std::string> headers = {};        // "Name: value"
  std::span<const std::string_view> body = {};  // parts, one after the other
  bool has_body = false;
  size_t most_bytes = 0;                 // of the answer's body, if the request succeeds
  const AwsCredentials* sign = nullptr;  // null: not signed
  std::string region = {};               // of the signature
};

struct HttpResponse {
  int status = 0;  // 0: there is no whole answer, see `problem`
  std::string etag = {}, region = {}, body = {};
  std::chrono::milliseconds retry_after{0};
  std::string problem = {};
  bool sent = false;       // the server may have received the request
  bool permanent = false;  // another attempt would end the same
};

// Requests by HTTP/1.1 over connections that are used again. Certificates are verified, redirects
// are not followed, and no proxy is used. Any thread; a call blocks it.
class HttpClient {
 public:
  explicit HttpClient(HttpClientOptions options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // The request is sent once. Throws std::bad_alloc. deadline: the call ends by then.
  HttpResponse send(const HttpCall& call, std::chrono::steady_clock::time_point deadline);

 private:
  struct Connection;  // an easy handle of libcurl, with its connection
  std::unique_ptr<Connection> take();
  void give_back(std::unique_ptr<Connection> connection);

  const HttpClientOptions options_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Connection>> idle_;
};

// For the value of a form: all but letters, digits and "-._~" as %XX. text: at most 2^20 bytes.
std::string url_escaped(std::string_view text);

}  // namespace recurve
