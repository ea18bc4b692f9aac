#pragma once
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace recurve {

// A server on loopback that answers HTTP requests as a test says.
class ScriptedServer {
 public:
  struct Request {
    std::string head = {}, body = {};
    int connection = 0;  // its number, from 1
  };
  // The bytes of the answer; empty: the connection is closed without one.
  using Answer = std::function<std::string(const Request& request, int number)>;

  explicit ScriptedServer(Answer answer) : answer_(std::move(answer)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    auto* plain = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    if (bind(listener_, plain, size) != 0 || listen(listener_, 16) != 0 ||
        getsockname(listener_, plain, &size) != 0) {
      throw std::runtime_error("cannot listen on loopback");
    }
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~ScriptedServer() {
    shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    {
      const std::lock_guard lock(mutex_);
      for (const int fd : open_) shutdown(fd, SHUT_RDWR);
    }
    for (std::thread& thread : threads_) thread.join();
    close(listener_);
  }
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  std::string url() const { return fmt::format("http://127.0.0.1:{}", port_); }
  std::vector<Request> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

  static std::string answer(const std::string& status, const std::string& body = {},
                            const std::string& headers = {}) {
    return fmt::format("HTTP/1.1 {}\r\nContent-Length: {}\r\n{}\r\n{}", status, body.size(),
                       headers, body);
  }
  static std::string error(const std::string& status, const std::string& code) {
    return answer(status, "<Error><Code>" + code + "</Code></Error>");
  }

 private:
  void accept_all() {
    for (int number = 1;; ++number) {
      const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) return;
      const std::lock_guard lock(mutex_);
      open_.push_back(fd);
      threads_.emplace_back([this, fd, number] { serve(fd, number); });
    }
  }

  void serve(int fd, int connection) {
    std::string received;
    while (read_until(fd, &received, [&] { return received.find("\r\n\r\n") != received.npos; })) {
      Request request{.connection = connection};
      const size_t end = received.find("\r\n\r\n") + 4;
      request.head = received.substr(0, end);
      const size_t length = request.head.find("Content-Length: ");
      const size_t bytes = length == std::string::npos
                               ? 0
                               : std::strtoull(request.head.c_str() + length + 16, nullptr, 10);
      if (!read_until(fd, &received, [&] { return received.size() >= end + bytes; })) break;
      request.body = received.substr(end, bytes);
      received.erase(0, end + bytes);
      const std::string answer = answer_for(std::move(request));
      if (answer.empty()) break;
      if (send(fd, answer.data(), answer.size(), MSG_NOSIGNAL) < 0) break;
      if (answer.find("Connection: close") != std::string::npos) break;
    }
    const std::lock_guard lock(mutex_);
    std::erase(open_, fd);
    close(fd);
  }

  template <typename Whole>
  static bool read_until(int fd, std::string* received, const Whole& whole) {
    char buffer[4096];
    while (!whole()) {
      const ssize_t bytes = recv(fd, buffer, sizeof buffer, 0);
      if (bytes <= 0) return false;
      received->append(buffer, static_cast<size_t>(bytes));
    }
    return true;
  }

  std::string answer_for(Request request) {
    int number = 0;
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
      number = static_cast<int>(requests_.size());
    }
    return answer_(request, number);
  }

  const Answer answer_;
  int listener_ = -1;
  int port_ = 0;
  mutable std::mutex mutex_;  // guards the vectors
  std::vector<int> open_;
  std::vector<Request> requests_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace recurve
