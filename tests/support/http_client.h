#pragma once
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace recurve::testing {

// A socket that is read to whatever end a response has.
class HttpClient {
 public:
  // receive_bytes: the size of the socket's receive buffer; 0: the system's default.
  explicit HttpClient(int port, int receive_bytes = 0)
      : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_bytes > 0) {
      setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{.tv_sec = 600, .tv_usec = 0};  // of a slow machine
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~HttpClient() { leave(); }
  HttpClient(HttpClient&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)), unread_(std::move(other.unread_)) {}
  HttpClient& operator=(HttpClient&& other) noexcept {
    std::swap(socket_, other.socket_);
    std::swap(unread_, other.unread_);
    return *this;
  }
  void leave() {
    if (socket_ >= 0) close(std::exchange(socket_, -1));
  }

  // Says that nothing more will come, and goes on reading.
  void close_half() { shutdown(socket_, SHUT_WR); }
  // False: the server does not take it any more.
  bool try_send(const std::string& bytes) {
    return ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  void send(const std::string& bytes) {
    EXPECT_EQ(::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // With a body, as JSON; of one that is a string, its bytes.
  void post(const std::string& path, const nlohmann::json& body, const std::string& headers = "") {
    const std::string text = body.is_string() ? body.get<std::string>() : body.dump();
    send("POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
         headers + "Content-Length: " + std::to_string(text.size()) + "\r\n\r\n" + text);
  }
  void get(const std::string& path, const std::string& headers = "Host: localhost\r\n") {
    send("GET " + path + " HTTP/1.1\r\n" + headers + "\r\n");
  }
  // All up to `end`, which is taken too; what there was, where the connection ends before.
  std::string read_to(const std::string& end) {
    while (unread_.find(end) == std::string::npos) {
      char part[4096];
      const ssize_t got = recv(socket_, part, sizeof part, 0);
      if (got <= 0) return std::exchange(unread_, {});
      unread_.append(part, static_cast<size_t>(got));
    }
    const size_t size = unread_.find(end) + end.size();
    std::string taken = unread_.substr(0, size);
    unread_.erase(0, size);
    return taken;
  }
  struct Response {
    int status = 0;
    std::string head, body;
    nlohmann::json object() const { return nlohmann::json::parse(body, nullptr, false); }
  };
  Response read() {
    Response response{.head = read_to("\r\n\r\n"), .body = {}};
    if (response.head.size() < 12) return response;
    response.status = std::stoi(response.head.substr(9, 3));
    if (response.head.find("chunked") != std::string::npos) {
      while (true) {
        const auto size = std::stoul("0" + read_to("\r\n"), nullptr, 16);
        const std::string chunk = read_bytes(size + 2);
        if (size == 0 || chunk.size() < size + 2) return response;
        response.body += chunk.substr(0, size);
      }
    }
    const size_t at = response.head.find("Content-Length: ");
    if (at != std::string::npos)
      response.body = read_bytes(std::stoul(response.head.substr(at + 16)));
    return response;
  }
  // The status of a response that ends with its connection, and whose body is dropped as it comes.
  int read_status() {
    const std::string head = read_to("\r\n\r\n");
    char part[4096];
    while (recv(socket_, part, sizeof part, 0) > 0) {
    }
    return head.size() < 12 ? 0 : std::stoi(head.substr(9, 3));
  }
  bool closed() { return read_to("nothing comes").empty(); }

 private:
  std::string read_bytes(size_t count) {
    while (unread_.size() < count) {
      char part[4096];
      const ssize_t got = recv(socket_, part, sizeof part, 0);
      if (got <= 0) break;
      unread_.append(part, static_cast<size_t>(got));
    }
    std::string taken = unread_.substr(0, count);
    unread_.erase(0, taken.size());
    return taken;
  }
  int socket_;
  std::string unread_;
};

}  // namespace recurve::testing
