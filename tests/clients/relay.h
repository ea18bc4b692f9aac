#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace recurve::testing {

// Stands between one client and a server of this machine, and can hold up what they say or pull the
// plug.
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
  void cut() { cut_ = true; }    // drops the connection, and takes no other

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
    while (!cut_ && !wait_for(listener_)) continue;
    const int client = cut_ ? -1 : accept(listener_, nullptr, nullptr);
    close(listener_);
    const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = local(server_port_);
    bool up = client >= 0 &&
              connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    while (up && !cut_) {
      for (const auto& [from, to] : {std::pair(client, server), std::pair(server, client)}) {
        if (held_) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        if (held_ || !wait_for(from)) continue;
        char piece[4096];
        const ssize_t size = read(from, piece, sizeof piece);
        up = up && size > 0 && send(to, piece, static_cast<size_t>(size), MSG_NOSIGNAL) == size;
      }
    }
    if (client >= 0) close(client);
    close(server);
  }

  int server_port_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> held_ = false, cut_ = false;
  std::thread thread_;
};

}  // namespace recurve::testing
