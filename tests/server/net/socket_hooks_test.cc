#include "server/net/socket_hooks.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

#include "server/observe/metrics.h"

namespace recurve::socket_hooks_test {

const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const std::string kSettings = {0, 0, 0, 4, 0, 0, 0, 0, 0};

// A non-blocking server end like gRPC's, and the client's end.
struct Connection {
  Connection() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0); }
  ~Connection() {
    for (const int end : ends) close(end);
  }
  void say(const std::string& bytes) {
    ASSERT_EQ(send(ends[1], bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // Reads as gRPC does, into two buffers; "!": the connection is broken.
  std::string read() {
    std::string all;
    while (true) {
      std::array<char, 7> first{};
      std::array<char, 400> second{};
      std::array<iovec, 2> parts{{{first.data(), first.size()}, {second.data(), second.size()}}};
      msghdr message{};
      message.msg_iov = parts.data();
      message.msg_iovlen = parts.size();
      const ssize_t got = recvmsg(ends[0], &message, 0);
      if (got < 0) return errno == EAGAIN ? all : "!";
      if (got == 0) return all;
      const auto size = static_cast<size_t>(got);
      all.append(first.data(), std::min(size, first.size()));
      if (size > first.size()) all.append(second.data(), size - first.size());
    }
  }
  std::string heard() {
    std::string all(1000, '\0');
    const ssize_t got = recv(ends[1], all.data(), all.size(), 0);
    return all.substr(0, got < 0 ? 0 : static_cast<size_t>(got));
  }
  std::array<int, 2> ends{-1, -1};
};

std::string many(int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += kSettings;
  return all;
}

template <typename Ours, typename Next>
void expect_replaced(const char* name, Ours* ours, Next* next) {
  EXPECT_EQ(dlsym(RTLD_DEFAULT, name), reinterpret_cast<void*>(ours)) << name;
  EXPECT_TRUE(next != nullptr && next != ours) << name;
}

TEST(SocketHooks, ReplaceTheSystemsFunctions) {
  const SystemSockets& next = system_sockets();
  expect_replaced("recvmsg", &::recvmsg, next.recvmsg);
  expect_replaced("sendmsg", &::sendmsg, next.sendmsg);
  expect_replaced("recv", &::recv, next.recv);
  expect_replaced("send", &::send, next.send);
  expect_replaced("shutdown", &::shutdown, next.shutdown);
}

TEST(SocketHooks, EndAConnectionThatFloods) {
  Metrics metrics;
  Connection connection;
  SocketHooks::of_process().guard_frames(
      connection.ends[0],
      std::make_shared<FrameGuard>(Peer{.address = "192.0.2.1"}, metrics, FrameCounter::Shared()));
  connection.say(kPreface + many(50));
  EXPECT_EQ(connection.read(), kPreface + many(50));
  connection.say(many(600));
  EXPECT_EQ(connection.read(), "!");
  // GOAWAY with ENHANCE_YOUR_CALM, then the end.
  const std::string frame = connection.heard();
  ASSERT_GT(frame.size(), 17U);
  EXPECT_EQ(frame[3], 7);
  EXPECT_EQ(frame[16], 11);
  EXPECT_EQ(frame.substr(17), "too many: settings");
  EXPECT_EQ(connection.heard(), "");
  EXPECT_EQ(connection.read(), "!") << "earlier bytes are not read either";
  EXPECT_THAT(metrics.text(), testing::HasSubstr("recurve_floods_total{of=\"settings\"} 1"));
}

TEST(SocketHooks, LeaveOtherSocketsAlone) {
  Metrics metrics;
  Connection other;
  other.say(many(500));
  EXPECT_EQ(other.read(), many(500));
  int number = -1;
  {
    Connection guarded;
    number = guarded.ends[0];
    SocketHooks::of_process().guard_frames(
        number, std::make_shared<FrameGuard>(Peer{}, metrics, FrameCounter::Shared()));
  }
  // A reused descriptor is another socket.
  Connection next;
  if (next.ends[0] != number) std::swap(next.ends[0], next.ends[1]);
  ASSERT_EQ(next.ends[0], number);
  next.say(many(500));
  EXPECT_EQ(next.read(), many(500));
}

TEST(SocketHooks, DoNotCountPeekedBytes) {
  Metrics metrics;
  Connection connection;
  SocketHooks::of_process().guard_frames(
      connection.ends[0], std::make_shared<FrameGuard>(Peer{}, metrics, FrameCounter::Shared()));
  connection.say(kPreface + many(60));
  for (int i = 0; i < 10; ++i) {
    std::array<char, 2000> bytes{};
    iovec part{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    EXPECT_GT(recvmsg(connection.ends[0], &message, MSG_PEEK), 0);
  }
  EXPECT_EQ(connection.read(), kPreface + many(60));
}

}  // namespace recurve::socket_hooks_test
