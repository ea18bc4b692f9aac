#pragma once
#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

// Streams over HTTP, read by one thread that does no more with them than a measurement needs: it
// counts events and looks at the end.
namespace recurve::bench {

// An endpoint that streams.
struct HttpDialect {
  std::string_view name, path;
  std::string_view body;  // with {} for the number of tokens
  std::string_view field_of_tokens;
};

constexpr HttpDialect kHttpDialects[] = {
    {"http", "/v1/completions",
     R"({{"prompt": "Call me Ishmael.", "max_tokens": {}, "temperature": 0, "ignore_eos": true,)"
     R"( "stream": true, "stream_options": {{"include_usage": true}}}})",
     "\"completion_tokens\":"},
    {"chat", "/v1/chat/completions",
     R"({{"messages": [{{"role": "user", "content": "Call me Ishmael."}}], "max_tokens": {},)"
     R"( "temperature": 0, "stream": true, "stream_options": {{"include_usage": true}}}})",
     "\"completion_tokens\":"},
    {"responses", "/v1/responses",
     R"({{"input": "Call me Ishmael.", "max_output_tokens": {}, "temperature": 0, "store": false,)"
     R"( "stream": true}})",
     "\"output_tokens\":"},
    {"messages", "/v1/messages",
     R"({{"model": "null", "messages": [{{"role": "user", "content": "Call me Ishmael."}}],)"
     R"( "max_tokens": {}, "temperature": 0, "stream": true}})",
     "\"output_tokens\":"},
};

// One stream: a connection with one request on it, which the server closes behind the answer.
class HttpStream {
 public:
  // Connects and asks for so many tokens. Throws std::system_error.
  HttpStream(int port, int tokens, const HttpDialect& dialect = kHttpDialects[0])
      : dialect_(&dialect), socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), "connect");
    const std::string body = fmt::format(fmt::runtime(dialect.body), tokens);
    const std::string request = fmt::format(
        "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Connection: close\r\nContent-Length: {}\r\n\r\n{}",
        dialect.path, body.size(), body);
    check(send(socket_, request.data(), request.size(), MSG_NOSIGNAL), "send");
  }
  HttpStream(HttpStream&& other) noexcept
      : dialect_(other.dialect_),
        socket_(std::exchange(other.socket_, -1)),
        end_(std::move(other.end_)),
        events_(other.events_),
        done_(other.done_) {}
  ~HttpStream() {
    if (socket_ >= 0) close(socket_);
  }

  int socket() const { return socket_; }
  bool begun() const { return events_ > 0; }  // its first event has come
  bool done() const { return done_; }

  // What there is to read, once there is. Returns how many events began in it.
  int read() {
    thread_local std::vector<char> bytes(256 << 10);
    const ssize_t got = recv(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    done_ = got <= 0;
    if (done_) return 0;
    const std::string_view read(bytes.data(), static_cast<size_t>(got));
    const int events = count_events(read);
    events_ += events;
    end_.append(read.substr(read.size() - std::min(read.size(), kKept)));
    if (end_.size() > kKept) end_.erase(0, end_.size() - kKept);
    return events;
  }

  // Tokens, as the last event that counts them does. Throws std::runtime_error if none does.
  int64_t tokens() const {
    const size_t at = end_.rfind(dialect_->field_of_tokens);
    if (at == std::string::npos) throw std::runtime_error("HTTP: no usage at the end of " + end_);
    return std::stoll(end_.substr(at + dialect_->field_of_tokens.size()));
  }

 private:
  static constexpr size_t kKept = 1000;  // bytes of the end, with the usage

  static void check(ssize_t result, const char* what) {
    if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  }

  // An event whose first bytes came at the end of what was read before is counted now.
  int count_events(std::string_view read) {
    constexpr std::string_view kEvent = "data: ";
    int events = 0;
    if (!end_.empty()) {
      const std::string seam = end_.substr(end_.size() - std::min(end_.size(), kEvent.size() - 1)) +
                               std::string(read.substr(0, kEvent.size() - 1));
      events += seam.find(kEvent) != std::string::npos ? 1 : 0;
    }
    for (size_t at = 0; (at = read.find(kEvent, at)) != std::string_view::npos; ++at) ++events;
    return events;
  }

  const HttpDialect* dialect_;
  int socket_;
  std::string end_;
  int64_t events_ = 0;
  bool done_ = false;
};

// Reads each of the streams until enough(stream). on_events(how many) is called for what each read
// brought. Throws std::runtime_error if nothing comes for a minute.
template <typename Enough, typename OnEvents>
void read_until(std::vector<HttpStream>& streams, Enough enough, OnEvents on_events) {
  const struct Poll {
    int descriptor = epoll_create1(EPOLL_CLOEXEC);
    ~Poll() { close(descriptor); }
  } poll;
  for (size_t i = 0; i < streams.size(); ++i) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = i;
    if (epoll_ctl(poll.descriptor, EPOLL_CTL_ADD, streams[i].socket(), &event) != 0) {
      throw std::system_error(errno, std::generic_category(), "epoll_ctl");
    }
  }
  std::vector<epoll_event> ready(streams.size());
  for (size_t left = streams.size(); left > 0;) {
    const int count =
        epoll_wait(poll.descriptor, ready.data(), static_cast<int>(ready.size()), 60'000);
    if (count == 0) throw std::runtime_error("HTTP: a minute without any event");
    for (int i = 0; i < count; ++i) {
      HttpStream& stream = streams[ready[i].data.u64];
      on_events(stream.read());
      if (!enough(stream)) continue;
      epoll_ctl(poll.descriptor, EPOLL_CTL_DEL, stream.socket(), nullptr);
      --left;
    }
  }
}

}  // namespace recurve::bench
