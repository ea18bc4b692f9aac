#pragma once
#include <sys/socket.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

namespace recurve {

// The other end of a connection.
struct Peer {
  // "192.0.2.1" or "2001:db8::1"; an IPv4 address mapped to IPv6 is IPv4. "uid 1000": the user at
  // a Unix socket.
  std::string address;
  int port = 0;
  // What limits per address count: the address; of IPv6 its /64 network, all of which one machine
  // may have; of a Unix socket the user.
  std::string network;
  // Of the verified TLS client certificate, in the form of RFC 2253; empty: none.
  std::string subject = {};
  // The peer as grpc::ServerContext::peer() writes it.
  std::string grpc_name;
  uint32_t number = 0;           // of the connection among all accepted, from 1
  bool of_this_machine = false;  // a loopback address or a Unix socket
};

// The peer of a connection accepted from `address`.
Peer to_peer(const sockaddr_storage& address, int descriptor);

// The open connections, their limits and their peers. Thread-safe.
//
// gRPC and Asio close connections without a notification. So each connection is stored with its
// descriptor and the inode of the socket, and sweep() removes those whose descriptor no longer
// refers to that socket.
class Connections {
 public:
  struct Limits {
    int in_all = 0;
    int by_network = 0;
  };
  enum class Verdict { kTaken, kTooMany, kTooManyOfNetwork };

  explicit Connections(Limits limits) : limits_(limits) {}

  const Limits& limits() const { return limits_; }
  // Peer::number of a connection just accepted.
  uint32_t next_number() { return ++numbers_; }
  // Adds a connection just accepted, unless there are too many. Sweeps before it refuses one, at
  // most once per kSweepInterval.
  Verdict add(int descriptor, const Peer& peer);
  // Removes closed connections. Returns how many remain.
  int sweep();
  // Sets the subject of a peer that has been added, after its handshake. False: an open connection
  // has the same name and another subject, so calls could not be told apart; close this one.
  bool certify(const Peer& peer);
  // By Peer::grpc_name; nothing for a call that did not come through a listener.
  std::optional<Peer> find(const std::string& grpc_name) const;

  static constexpr auto kSweepInterval = std::chrono::milliseconds(20);

 private:
  struct Connection {
    ino_t socket = 0;
    Peer peer;
  };
  // Connections to different addresses of this machine may have the same name, and a closed one has
  // it until a sweep.
  struct NamedPeer {
    Peer peer;
    int connections = 0;
  };

  Verdict verdict(const Peer& peer) const;
  void erase_closed();
  void erase(std::unordered_map<int, Connection>::iterator connection);

  const Limits limits_;
  std::atomic<uint32_t> numbers_{0};
  mutable std::mutex mutex_;
  std::unordered_map<int, Connection> by_descriptor_;
  std::unordered_map<std::string, NamedPeer> by_name_;
  std::unordered_map<std::string, int> of_network_;
  std::chrono::steady_clock::time_point swept_ = {};
};

// The configured limits. 0: as many connections as the process's limit of open files allows, at
// most 10,000; half of all per network.
Connections::Limits connection_limits(int in_all, int by_network);
// Raises the process's limit of open files to its hard limit.
void allow_many_files();

}  // namespace recurve
