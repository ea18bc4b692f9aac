#include "server/net/connections.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace recurve {
namespace {

std::string to_string(int family, const void* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(family, address, text.data(), text.size());
  return text.data();
}

Peer peer_v4(const in_addr& address, int port) {
  const std::string text = to_string(AF_INET, &address);
  return {.address = text,
          .port = port,
          .network = text,
          .grpc_name = fmt::format("ipv4:{}:{}", text, port),
          .of_this_machine = (ntohl(address.s_addr) >> 24) == 127};
}

// gRPC writes names as URIs: brackets and the percent sign before a zone are escaped.
Peer peer_v6(const sockaddr_in6& from, int port) {
  const std::string text = to_string(AF_INET6, &from.sin6_addr);
  const std::string zone = from.sin6_scope_id == 0 ? "" : fmt::format("%25{}", from.sin6_scope_id);
  in6_addr network = from.sin6_addr;
  std::fill(network.s6_addr + 8, network.s6_addr + 16, uint8_t{0});
  return {.address = text,
          .port = port,
          .network = to_string(AF_INET6, &network) + "/64",
          .grpc_name = fmt::format("ipv6:%5B{}{}%5D:{}", text, zone, port),
          .of_this_machine = IN6_IS_ADDR_LOOPBACK(&from.sin6_addr)};
}

// The peer at a Unix socket has no address. The system knows the user; gRPC names the connection by
// its descriptor.
Peer peer_of_this_machine(int descriptor) {
  ucred user{};
  socklen_t size = sizeof(user);
  const bool known = getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &user, &size) == 0;
  const std::string text = known ? fmt::format("uid {}", user.uid) : "unknown user";
  return {.address = text,
          .network = text,
          .grpc_name = fmt::format("fd:{}", descriptor),
          .of_this_machine = true};
}

// The inode of the descriptor's socket; 0 if it is closed.
ino_t socket_of(int descriptor) {
  struct stat status{};
  const bool is_socket = fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode);
  return is_socket ? status.st_ino : 0;
}

}  // namespace

Peer to_peer(const sockaddr_storage& address, int descriptor) {
  if (address.ss_family == AF_UNIX) return peer_of_this_machine(descriptor);
  if (address.ss_family == AF_INET) {
    sockaddr_in from{};
    std::memcpy(&from, &address, sizeof(from));
    return peer_v4(from.sin_addr, ntohs(from.sin_port));
  }
  sockaddr_in6 from{};
  std::memcpy(&from, &address, sizeof(from));
  const int port = ntohs(from.sin6_port);
  if (!IN6_IS_ADDR_V4MAPPED(&from.sin6_addr)) return peer_v6(from, port);
  in_addr inner{};
  std::memcpy(&inner, from.sin6_addr.s6_addr + 12, sizeof(inner));
  return peer_v4(inner, port);
}

Connections::Verdict Connections::add(int descriptor, const Peer& peer) {
  std::lock_guard lock(mutex_);
  // A descriptor is reused only after its connection was closed.
  const auto old = by_descriptor_.find(descriptor);
  if (old != by_descriptor_.end()) erase(old);
  Verdict found = verdict(peer);
  if (found != Verdict::kTaken && std::chrono::steady_clock::now() - swept_ >= kSweepInterval) {
    erase_closed();
    found = verdict(peer);
  }
  if (found != Verdict::kTaken) return found;
  by_descriptor_[descriptor] = {socket_of(descriptor), peer};
  NamedPeer& named = by_name_[peer.grpc_name];
  if (named.connections++ == 0) named.peer = peer;
  ++of_network_[peer.network];
  return found;
}

Connections::Verdict Connections::verdict(const Peer& peer) const {
  if (static_cast<int>(by_descriptor_.size()) >= limits_.in_all) return Verdict::kTooMany;
  const auto count = of_network_.find(peer.network);
  const bool many = count != of_network_.end() && count->second >= limits_.by_network;
  return many ? Verdict::kTooManyOfNetwork : Verdict::kTaken;
}

int Connections::sweep() {
  std::lock_guard lock(mutex_);
  erase_closed();
  return static_cast<int>(by_descriptor_.size());
}

void Connections::erase_closed() {
  for (auto it = by_descriptor_.begin(); it != by_descriptor_.end();) {
    const auto connection = it++;
    if (socket_of(connection->first) != connection->second.socket) erase(connection);
  }
  swept_ = std::chrono::steady_clock::now();
}

void Connections::erase(std::unordered_map<int, Connection>::iterator connection) {
  const Peer& peer = connection->second.peer;
  const auto named = by_name_.find(peer.grpc_name);
  if (--named->second.connections == 0) by_name_.erase(named);
  const auto count = of_network_.find(peer.network);
  if (--count->second == 0) of_network_.erase(count);
  by_descriptor_.erase(connection);
}

bool Connections::certify(const Peer& peer) {
  std::lock_guard lock(mutex_);
  auto named = by_name_.find(peer.grpc_name);
  if (named == by_name_.end()) return true;
  if (named->second.peer.subject == peer.subject) return true;
  if (named->second.connections > 1) erase_closed();
  named = by_name_.find(peer.grpc_name);
  if (named == by_name_.end()) return true;
  if (named->second.connections > 1) return false;
  named->second.peer.subject = peer.subject;
  return true;
}

std::optional<Peer> Connections::find(const std::string& grpc_name) const {
  std::lock_guard lock(mutex_);
  const auto named = by_name_.find(grpc_name);
  return named == by_name_.end() ? std::nullopt : std::optional(named->second.peer);
}

Connections::Limits connection_limits(int in_all, int by_network) {
  // For the model's files, connections for metrics and files that libraries open.
  constexpr rlim_t kOtherFiles = 128, kMost = 10'000;
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  const rlim_t others = std::min(kOtherFiles, files.rlim_cur / 2);
  const int fit = static_cast<int>(std::min(files.rlim_cur - others, kMost));
  if (in_all <= 0) in_all = std::max(fit, 1);
  return {.in_all = in_all, .by_network = by_network > 0 ? by_network : std::max(in_all / 2, 1)};
}

void allow_many_files() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

}  // namespace recurve
