#include "server/net/connections.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>
#include <thread>

namespace recurve::connections_test {

using Verdict = Connections::Verdict;

Peer peer(const std::string& address, int port, uint32_t zone = 0) {
  sockaddr_storage storage{};
  if (address.find(':') == std::string::npos) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(storage);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET, address.c_str(), &v4.sin_addr);
  } else {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(storage);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(static_cast<uint16_t>(port));
    v6.sin6_scope_id = zone;
    inet_pton(AF_INET6, address.c_str(), &v6.sin6_addr);
  }
  return to_peer(storage, /*descriptor=*/-1);
}

// A pair of connected sockets, closed by the destructor.
struct Pair {
  Pair() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0); }
  ~Pair() {
    close_first();
    close(ends[1]);
  }
  void close_first() {
    if (ends[0] >= 0) close(ends[0]);
    ends[0] = -1;
  }
  std::array<int, 2> ends{};
};

// A sweep runs at most once per interval.
void let_it_sweep() { std::this_thread::sleep_for(Connections::kSweepInterval); }

TEST(PeerTest, HasTheNameThatGrpcWritesAndANetwork) {
  EXPECT_EQ(peer("192.0.2.1", 80).grpc_name, "ipv4:192.0.2.1:80");
  EXPECT_EQ(peer("192.0.2.1", 80).network, "192.0.2.1");
  EXPECT_EQ(peer("2001:db8:0:1:2::3", 80).grpc_name, "ipv6:%5B2001:db8:0:1:2::3%5D:80");
  EXPECT_EQ(peer("2001:db8:0:1:2::3", 80).network, "2001:db8:0:1::/64");
  EXPECT_EQ(peer("fe80::1", 80, 2).grpc_name, "ipv6:%5Bfe80::1%252%5D:80");
  EXPECT_EQ(peer("::ffff:192.0.2.1", 80).grpc_name, "ipv4:192.0.2.1:80");
  EXPECT_EQ(peer("::ffff:192.0.2.1", 80).address, "192.0.2.1");
}

TEST(ConnectionsTest, HasLimitsInAllAndByNetwork) {
  Connections connections({.in_all = 3, .by_network = 2});
  const std::array<Pair, 4> sockets;
  EXPECT_EQ(connections.add(sockets[0].ends[0], peer("2001:db8::1", 1)), Verdict::kTaken);
  EXPECT_EQ(connections.add(sockets[1].ends[0], peer("2001:db8::2", 1)), Verdict::kTaken);
  EXPECT_EQ(connections.add(sockets[2].ends[0], peer("2001:db8::3", 1)),
            Verdict::kTooManyOfNetwork);
  EXPECT_EQ(connections.add(sockets[2].ends[0], peer("192.0.2.1", 1)), Verdict::kTaken);
  EXPECT_EQ(connections.add(sockets[3].ends[0], peer("192.0.2.2", 1)), Verdict::kTooMany);
  EXPECT_EQ(connections.sweep(), 3);
}

TEST(ConnectionsTest, AClosedConnectionFreesCapacity) {
  Connections connections({.in_all = 1, .by_network = 1});
  Pair first;
  const Pair second, third;
  ASSERT_EQ(connections.add(first.ends[0], peer("192.0.2.1", 1)), Verdict::kTaken);
  EXPECT_EQ(connections.add(second.ends[0], peer("192.0.2.1", 2)), Verdict::kTooMany);
  first.close_first();
  let_it_sweep();
  EXPECT_EQ(connections.add(second.ends[0], peer("192.0.2.1", 2)), Verdict::kTaken);
  EXPECT_FALSE(connections.find("ipv4:192.0.2.1:1"));
}

// A descriptor that refers to another file now is not the same connection.
TEST(ConnectionsTest, AReusedDescriptorIsAnotherConnection) {
  Connections connections({.in_all = 1, .by_network = 1});
  Pair first;
  const int number = first.ends[0];
  ASSERT_EQ(connections.add(number, peer("192.0.2.1", 1)), Verdict::kTaken);
  first.close_first();
  const Pair again;  // gets the lowest number
  ASSERT_EQ(again.ends[0], number);
  EXPECT_EQ(connections.sweep(), 0);
  ASSERT_EQ(connections.add(number, peer("192.0.2.1", 2)), Verdict::kTaken);
  EXPECT_EQ(connections.add(number, peer("192.0.2.1", 3)), Verdict::kTaken);
  EXPECT_EQ(connections.sweep(), 1);
}

TEST(ConnectionsTest, FindsAPeerWhileAConnectionHasItsName) {
  Connections connections({.in_all = 9, .by_network = 9});
  Pair first, second;  // from one port to two addresses of this machine
  connections.add(first.ends[0], peer("192.0.2.1", 1));
  connections.add(second.ends[0], peer("192.0.2.1", 1));
  first.close_first();
  EXPECT_EQ(connections.sweep(), 1);
  ASSERT_TRUE(connections.find("ipv4:192.0.2.1:1"));
  EXPECT_EQ(connections.find("ipv4:192.0.2.1:1")->address, "192.0.2.1");
  second.close_first();
  EXPECT_EQ(connections.sweep(), 0);
  EXPECT_FALSE(connections.find("ipv4:192.0.2.1:1"));
}

// The caller is found by the connection's name, so connections of one name must have one
// certificate.
TEST(ConnectionsTest, OneNameHasOneSubject) {
  Connections connections({.in_all = 9, .by_network = 9});
  Pair first;
  const Pair second;
  Peer alice = peer("192.0.2.1", 1), bob = alice;
  alice.subject = "CN=alice";
  bob.subject = "CN=bob";
  connections.add(first.ends[0], peer("192.0.2.1", 1));
  EXPECT_TRUE(connections.certify(alice));
  connections.add(second.ends[0], peer("192.0.2.1", 1));
  EXPECT_EQ(connections.find(alice.grpc_name)->subject, "CN=alice");
  EXPECT_FALSE(connections.certify(bob));
  EXPECT_TRUE(connections.certify(alice));
  EXPECT_EQ(connections.find(alice.grpc_name)->subject, "CN=alice");
  // After those are closed the name is free again, with or without a sweep.
  first.close_first();
  EXPECT_TRUE(connections.certify(bob));
  EXPECT_EQ(connections.find(alice.grpc_name)->subject, "CN=bob");
}

TEST(ConnectionsTest, LimitsFollowTheLimitOfOpenFiles) {
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit few = before;
  few.rlim_cur = 1024;
  setrlimit(RLIMIT_NOFILE, &few);
  EXPECT_EQ(connection_limits(0, 0).in_all, 1024 - 128);
  EXPECT_EQ(connection_limits(0, 0).by_network, (1024 - 128) / 2);
  EXPECT_EQ(connection_limits(0, 7).by_network, 7);
  EXPECT_EQ(connection_limits(50, 0).in_all, 50);
  few.rlim_cur = 100;
  setrlimit(RLIMIT_NOFILE, &few);
  EXPECT_EQ(connection_limits(0, 0).in_all, 50);
  setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace recurve::connections_test
