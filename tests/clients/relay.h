#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace recurve::testing {

// Stands between one client and a server of this machine, and can hold up what they say, drop the
// connection or pull the plug.
class Relay {
 public:
  explicit Relay(int server_port) : server_port_(server_port) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = local(0);
    socklen_t size = sizeof address;
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        listen(listener_, 1) != 0 ||
        getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      throw std::runtime_error("no socket to listen on");
    }
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~Relay() {
    cut();
    thread_.join();
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void hold() { held_ = true; }  // keeps the connection, and passes nothing on any more
  // Passes on this many more bytes of the server's, or a piece more, and then nothing.
  void hold_after(int64_t bytes) { answer_bytes_ = bytes; }
  void cut() { cut_ = true; }  // drops the connection, and takes no other
  // Drops the connection with all that was held up, and takes the next one.
  void drop() {
    dropped_ = true;
    held_ = false;
    answer_bytes_ = kUnbounded;
  }

 private:
  static sockaddr_in local(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    return address;
  }

  bool wait_for(int fd) {  // 10 ms at most
    pollfd entry{fd, POLLIN, 0};
    return poll(&entry, 1, 10) > 0;
  }

  void run() {
    do {
      dropped_ = false;
      while (!cut_ && !wait_for(listener_)) continue;
      if (!cut_) serve(accept(listener_, nullptr, nullptr));
    } while (dropped_ && !cut_);
    close(listener_);
  }

  void serve(int client) {
    const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = local(server_port_);
    bool up = client >= 0 &&
              connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    while (up && !cut_ && !dropped_) {
      for (const auto& [from, to] : {std::pair(client, server), std::pair(server, client)}) {
        if (held_) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        if (held_ || dropped_ || !wait_for(from)) continue;
        char piece[4096];
        const ssize_t size = read(from, piece, sizeof piece);
        up = up && size > 0 && send(to, piece, static_cast<size_t>(size), MSG_NOSIGNAL) == size;
        if (from == server && (answer_bytes_ -= size) <= 0) hold();
      }
    }
    if (client >= 0) close(client);
    close(server);
  }

  static constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();

  int server_port_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<int64_t> answer_bytes_ = kUnbounded;
  std::atomic<bool> held_ = false, cut_ = false, dropped_ = false;
  std::thread thread_;
};

}  // namespace recurve::testing
