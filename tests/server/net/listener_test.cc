#include "server/net/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/net/bind.h"
#include "tests/support/temp_dir.h"

namespace recurve::listener_test {

using ::testing::HasSubstr;

// Collects connections; the destructor closes them.
class Taker {
 public:
  ~Taker() { close_all(); }
  void take(int descriptor) {
    std::lock_guard lock(mutex_);
    taken_.push_back(descriptor);
    changed_.notify_all();
  }
  // False: fewer arrived within a minute.
  bool wait_for(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(1), [&] { return taken_.size() >= count; });
  }
  void close_all() {
    std::lock_guard lock(mutex_);
    for (const int descriptor : taken_) close(descriptor);
    taken_.clear();
  }
  int first() {
    std::lock_guard lock(mutex_);
    return taken_.front();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> taken_;
};

// A socket connected to a port of this machine.
class Client {
 public:
  explicit Client(int port, int family = AF_INET) : descriptor_(socket(family, SOCK_STREAM, 0)) {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(static_cast<uint16_t>(port));
    v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = v4.sin_port;
    v6.sin6_addr = in6addr_loopback;
    const auto* to =
        family == AF_INET ? reinterpret_cast<sockaddr*>(&v4) : reinterpret_cast<sockaddr*>(&v6);
    connected_ = connect(descriptor_, to, family == AF_INET ? sizeof(v4) : sizeof(v6)) == 0;
  }
  explicit Client(const UnixAddress& at) : descriptor_(socket(AF_UNIX, SOCK_STREAM, 0)) {
    connected_ = connect(descriptor_, reinterpret_cast<const sockaddr*>(&at.name), at.size) == 0;
  }
  ~Client() { close(descriptor_); }
  Client(Client&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), connected_(other.connected_) {}
  Client& operator=(Client&&) = delete;
  bool connected() const { return connected_; }
  // Waits for the other end to close it.
  bool was_closed() const {
    char byte = 0;
    return recv(descriptor_, &byte, 1, 0) <= 0;
  }

 private:
  int descriptor_;
  bool connected_ = false;
};

bool has_ipv6() {
  const int probe = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  any.sin6_addr = in6addr_loopback;
  const bool works = bind(probe, reinterpret_cast<sockaddr*>(&any), sizeof(any)) == 0;
  close(probe);
  return works;
}

struct Running {
  explicit Running(const std::string& address, Connections::Limits limits = {100, 100})
      : connections(limits), listener(address) {}
  ~Running() { listener.stop(); }
  void start() {
    listener.start(connections, metrics,
                   [this](int descriptor, const Peer&) { taker.take(descriptor); });
  }
  Metrics metrics;
  Connections connections;
  Taker taker;
  Listener listener;
};

TEST(ListenerTest, PassesConnectionsOn) {
  Running running("127.0.0.1:0");
  EXPECT_GT(running.listener.port(), 0);
  const Client before(running.listener.port());  // waits until it starts
  running.start();
  const Client after(running.listener.port());
  ASSERT_TRUE(running.taker.wait_for(2));
  int no_delay = 0;
  socklen_t size = sizeof(no_delay);
  getsockopt(running.taker.first(), IPPROTO_TCP, TCP_NODELAY, &no_delay, &size);
  EXPECT_EQ(no_delay, 1);
  EXPECT_TRUE(fcntl(running.taker.first(), F_GETFL) & O_NONBLOCK);
}

TEST(ListenerTest, ListensOnIPv4AndIPv6) {
  if (!has_ipv6()) GTEST_SKIP() << "no IPv6";
  for (const char* address : {"[::1]:0", "[::]:0", "0.0.0.0:0", "localhost:0"}) {
    Running running(address);
    running.start();
    const bool v6_only = std::string(address) == "[::1]:0";
    EXPECT_EQ(Client(running.listener.port()).connected(), !v6_only) << address;
    EXPECT_TRUE(Client(running.listener.port(), AF_INET6).connected() ||
                std::string(address) == "localhost:0");
    EXPECT_TRUE(running.taker.wait_for(1)) << address;
  }
}

TEST(ListenerTest, ReportsAnInvalidAddress) {
  const Listener first("127.0.0.1:0");
  const std::string taken = "127.0.0.1:" + std::to_string(first.port());
  for (const std::string& bad :
       {taken, std::string("127.0.0.1"), std::string("127.0.0.1:65536"), std::string("::1:80"),
        std::string(":80"), std::string("no-host.invalid:80"), std::string("192.0.2.1:80")}) {
    try {
      const Listener listener(bad);
      FAIL() << "listens on " << bad;
    } catch (const std::runtime_error& error) {
      EXPECT_THAT(error.what(), HasSubstr("cannot listen on \"" + bad + "\""));
    }
  }
}

TEST(ListenerTest, ClosesConnectionsOverTheLimit) {
  Running running("127.0.0.1:0", {.in_all = 10, .by_network = 2});
  running.start();
  const Client first(running.listener.port()), second(running.listener.port());
  ASSERT_TRUE(running.taker.wait_for(2));
  EXPECT_TRUE(Client(running.listener.port()).was_closed());
  EXPECT_THAT(running.metrics.text(), HasSubstr("refused_total{reason=\"too_many_of_address\"} 1"));
}

TEST(ListenerTest, CountsAUserOfAUnixSocket) {
  const TempDir folder;
  const std::string file = (folder / "socket").string();
  for (const std::string& address : {"unix:" + file, "unix://" + file, "unix-abstract:" + file}) {
    const UnixAddress at = *to_unix_address(address);
    Running running(address, {.in_all = 10, .by_network = 2});
    EXPECT_EQ(running.listener.port(), 0);
    running.start();
    const Client first(at), second(at);
    ASSERT_TRUE(running.taker.wait_for(2)) << address;
    const auto peer = running.connections.find("fd:" + std::to_string(running.taker.first()));
    ASSERT_TRUE(peer.has_value());
    EXPECT_EQ(peer->address, "uid " + std::to_string(getuid()));
    EXPECT_TRUE(Client(at).was_closed());
    EXPECT_THAT(running.metrics.text(),
                HasSubstr("refused_total{reason=\"too_many_of_address\"} 1"));
    EXPECT_THROW(Listener{address}, std::runtime_error) << "another listener uses it";
  }
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(ListenerTest, ReplacesAStaleSocketFile) {
  const TempDir folder;
  const std::string file = (folder / "socket").string();
  close(listen_on_unix(*to_unix_address("unix:" + file)));  // as a process that was killed
  EXPECT_TRUE(std::filesystem::exists(file));
  {
    const Listener listener("unix:" + file);
  }
  std::ofstream(file) << "foreign";
  EXPECT_THROW(Listener{"unix:" + file}, std::runtime_error);
  EXPECT_TRUE(std::filesystem::exists(file));
  EXPECT_THROW(Listener{"unix:" + std::string(108, 'x')}, std::runtime_error);
  EXPECT_THROW(Listener{"unix:"}, std::runtime_error);
}

// The process runs out of descriptors while connections wait, and then has some again.
TEST(ListenerTest, ContinuesAfterDescriptorsRanOut) {
  Running running("127.0.0.1:0");
  std::vector<Client> clients;
  for (int i = 0; i < 8; ++i) clients.emplace_back(running.listener.port());
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const int next = dup(0);  // the lowest that is free
  close(next);
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(next) + 3;
  setrlimit(RLIMIT_NOFILE, &few);
  running.start();
  EXPECT_TRUE(running.taker.wait_for(3));
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  const auto none_failed = [&] {
    return running.metrics.text().find("{reason=\"no_file_left\"} 0") != std::string::npos;
  };
  while (none_failed() && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
  EXPECT_FALSE(none_failed());
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(running.taker.wait_for(8));
  EXPECT_TRUE(Client(running.listener.port()).connected());
  EXPECT_TRUE(running.taker.wait_for(9));
}

}  // namespace recurve::listener_test
