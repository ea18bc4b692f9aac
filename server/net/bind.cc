#include "server/net/bind.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "server/net/unix_socket.h"

namespace recurve {
namespace {

// Milliseconds that sent bytes may stay without an answer from the other machine.
constexpr int kUserTimeout = 10'000;

struct HostAndPort {
  std::string host;
  int port = -1;
};

HostAndPort split(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) return {};
  HostAndPort found{.host = address.substr(0, colon)};
  const bool brackets = found.host.front() == '[' && found.host.back() == ']';
  if (brackets) found.host = found.host.substr(1, found.host.size() - 2);
  const bool numeric_v6 = found.host.find(':') != std::string::npos;
  if (found.host.empty() || numeric_v6 != brackets) return {};
  const char* begin = address.data() + colon + 1;
  const char* end = address.data() + address.size();
  int port = -1;
  const auto [rest, error] = std::from_chars(begin, end, port);
  if (error == std::errc() && rest == end && port >= 0 && port <= 65535) found.port = port;
  return found;
}

[[noreturn]] void fail(const std::string& address, const std::string& why) {
  throw std::runtime_error(
      fmt::format("cannot listen on \"{}\": {}; choose another with --listen", address, why));
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolve(const std::string& address, const HostAndPort& at) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  const std::string port = std::to_string(at.port);
  addrinfo* found = nullptr;
  const int error = getaddrinfo(at.host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) fail(address, fmt::format("\"{}\": {}", at.host, gai_strerror(error)));
  return {found, freeaddrinfo};
}

// What is set here, accepted connections inherit.
void set_options(int descriptor, bool both_kinds) {
  const auto set = [&](int level, int name, int value) {
    setsockopt(descriptor, level, name, &value, sizeof(value));
  };
  // A server that starts again need not wait for the old one's last connections; but the port of
  // one that runs is taken: there is no SO_REUSEPORT, with which each would get half of the rest.
  set(SOL_SOCKET, SO_REUSEADDR, 1);
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeout);
  set(IPPROTO_IPV6, IPV6_V6ONLY, both_kinds ? 0 : 1);
}

// A socket that listens there, or -1, and errno says why.
int listen_on(const sockaddr* address, socklen_t size, bool both_kinds) {
  const int type = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
  const int descriptor = socket(address->sa_family, type, 0);
  if (descriptor < 0) return -1;
  set_options(descriptor, both_kinds);
  if (bind(descriptor, address, size) == 0 && listen(descriptor, SOMAXCONN) == 0) return descriptor;
  const int error = errno;
  close(descriptor);
  errno = error;
  return -1;
}

int port_of(int descriptor) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  getsockname(descriptor, reinterpret_cast<sockaddr*>(&bound), &size);
  // The port stands at the same place in both kinds.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
}

bool is_wildcard(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr == INADDR_ANY;
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
  return address->sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr);
}

// One socket for all addresses of both kinds; -1 where the machine has no IPv6.
int listen_everywhere(int port) {
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  any.sin6_port = htons(static_cast<uint16_t>(port));
  return listen_on(reinterpret_cast<const sockaddr*>(&any), sizeof(any), /*both_kinds=*/true);
}

int listen_at(const addrinfo& at, int port) {
  if (is_wildcard(at.ai_addr)) {
    const int descriptor = listen_everywhere(port);
    if (descriptor >= 0 || errno == EADDRINUSE) return descriptor;
  }
  // The port stands at the same place in both kinds.
  reinterpret_cast<sockaddr_in*>(at.ai_addr)->sin_port = htons(static_cast<uint16_t>(port));
  return listen_on(at.ai_addr, at.ai_addrlen, /*both_kinds=*/false);
}

Bound bind_unix(const std::string& address, const UnixAddress& at) {
  const int descriptor = listen_on_unix(at);
  if (descriptor < 0) fail(address, std::strerror(errno));
  return {.descriptors = {descriptor}, .path = at.path};
}

}  // namespace

Bound bind_all(const std::string& address) {
  if (const auto at = to_unix_address(address)) return bind_unix(address, *at);
  const HostAndPort at = split(address);
  if (at.port < 0) {
    fail(address, "the address is not HOST:PORT, [IPV6]:PORT or unix:PATH with a port up to 65535");
  }
  const AddressList addresses = resolve(address, at);
  Bound bound{.descriptors = {}, .port = at.port};
  int error = 0;
  for (const addrinfo* next = addresses.get(); next != nullptr; next = next->ai_next) {
    const int descriptor = listen_at(*next, bound.port);
    if (descriptor < 0) {
      error = errno;
      continue;
    }
    bound.descriptors.push_back(descriptor);
    bound.port = port_of(descriptor);
  }
  // A name may have an address that this machine has not; but no port is shared with anyone.
  if (bound.descriptors.empty() || error == EADDRINUSE) {
    for (const int descriptor : bound.descriptors) close(descriptor);
    fail(address, std::strerror(error));
  }
  return bound;
}

std::string file_of_address(const std::string& address) {
  const auto of_this_machine = to_unix_address(address);
  return of_this_machine ? of_this_machine->path : std::string();
}

bool is_of_this_machine(const std::string& address) {
  if (address.starts_with("unix:") || address.starts_with("unix-abstract:")) return true;
  const HostAndPort at = split(address);
  if (at.port < 0) return false;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* first = nullptr;
  if (getaddrinfo(at.host.c_str(), nullptr, &hints, &first) != 0) return false;
  const AddressList found(first, freeaddrinfo);
  for (const addrinfo* one = first; one != nullptr; one = one->ai_next) {
    if (one->ai_family == AF_INET) {
      const auto* v4 = reinterpret_cast<const sockaddr_in*>(one->ai_addr);
      if (ntohl(v4->sin_addr.s_addr) >> 24 != 127) return false;
    } else {
      const auto* v6 = reinterpret_cast<const sockaddr_in6*>(one->ai_addr);
      if (!IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr)) return false;
    }
  }
  return true;
}

}  // namespace recurve
