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

// Whoever is at the other end of a connection.
struct Peer {
  // "192.0.2.1" or "2001:db8::1"; IPv4 within IPv6 is IPv4. "uid 1000": that user, by a socket of
  // this machine.
  std::string address;
  int port = 0;
  // What a limit by address counts under: the address, of IPv6 its network of 64 bits, of which one
  // machine has all; of a socket of this machine the user.
  std::string network;
  // Of the certificate that it has shown in TLS, which was verified, as RFC 2253 writes it; empty:
  // none.
  std::string subject = {};
  // How gRPC writes it, in grpc::ServerContext::peer().
  std::string grpc_name;
  uint32_t number = 0;           // of the connection, from 1 on, of all that were accepted
  bool of_this_machine = false;  // it is at a loopback address or a socket of this machine
};

// The peer of a connection that has been accepted from `address`.
Peer to_peer(const sockaddr_storage& address, int descriptor);

// The connections that there are, and how many there may be. The one place that knows who the peer
// of a call is. Thread-safe.
//
// A connection is given away once it is accepted, and nobody says when it is closed: so each is
// known by its descriptor and the socket that this stood for, and sweep() looks which still does.
class Connections {
 public:
  struct Limits {
    int in_all = 0;
    int by_network = 0;
  };
  enum class Verdict { kTaken, kTooMany, kTooManyOfNetwork };

  explicit Connections(Limits limits) : limits_(limits) {}

  const Limits& limits() const { return limits_; }
  // Of a connection that has just been accepted: Peer's.
  uint32_t next_number() { return ++numbers_; }
  // Writes down a connection that has just been accepted, unless there are too many. Sweeps before
  // it says so, at most every kSweepInterval.
  Verdict add(int descriptor, const Peer& peer);
  // Forgets connections whose descriptor has been closed; the number of those left.
  int sweep();
  // What a handshake has shown of a peer that has been added: its subject. False: another one that
  // is still there has the same name and another subject, so that nobody could tell whose a call
  // is; it is to be closed.
  bool certify(const Peer& peer);
  // By the name that gRPC has for the peer of a call; nothing where it is not from the network.
  std::optional<Peer> find(const std::string& grpc_name) const;

  static constexpr auto kSweepInterval = std::chrono::milliseconds(20);

 private:
  struct Connection {
    ino_t socket = 0;
    Peer peer;
  };
  // Two connections may have the same name, where they are to different addresses of this machine,
  // and what is closed has it until a sweep.
  struct Named {
    Peer peer;
    int connections = 0;
  };

  Verdict verdict(const Peer& peer) const;
  void forget_closed();
  void erase(std::unordered_map<int, Connection>::iterator connection);

  const Limits limits_;
  std::atomic<uint32_t> numbers_{0};
  mutable std::mutex mutex_;
  std::unordered_map<int, Connection> by_descriptor_;
  std::unordered_map<std::string, Named> by_name_;
  std::unordered_map<std::string, int> of_network_;
  std::chrono::steady_clock::time_point swept_ = {};
};

// How many connections there may be: what was wanted, or where that is 0 what the process's limit
// of open files leaves, 10,000 at most, and half of it of one network.
Connections::Limits connection_limits(int wanted_in_all, int wanted_by_network);
// Raises the process's limit of open files to what it may have.
void allow_many_files();

}  // namespace recurve
