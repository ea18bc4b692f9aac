#include "server/net/bind.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string_view>

namespace recurve {
namespace {

// Milliseconds that sent bytes may stay unacknowledged.
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

// An address, and the flag that sets it.
struct Wanted {
  const std::string& address;
  const std::string& flag;
};

[[noreturn]] void fail(const Wanted& wanted, const std::string& why) {
  throw std::runtime_error(fmt::format("cannot listen on \"{}\": {}; choose another with {}",
                                       wanted.address, why, wanted.flag));
}

// Throws if it is not HOST:PORT.
HostAndPort host_and_port(const Wanted& wanted) {
  HostAndPort at = split(wanted.address);
  if (at.port >= 0) return at;
  fail(wanted, "the address is not HOST:PORT, [IPV6]:PORT or unix:PATH with a port up to 65535");
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolve(const Wanted& wanted, const HostAndPort& at) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  const std::string port = std::to_string(at.port);
  addrinfo* found = nullptr;
  const int error = getaddrinfo(at.host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) fail(wanted, fmt::format("\"{}\": {}", at.host, gai_strerror(error)));
  return {found, freeaddrinfo};
}

// Accepted connections inherit these.
void set_options(int descriptor, bool dual_stack) {
  const auto set = [&](int level, int name, int value) {
    setsockopt(descriptor, level, name, &value, sizeof(value));
  };
  // A restarted server need not wait for connections in TIME_WAIT. There is no SO_REUSEPORT: a
  // second server on the same port must fail instead of receiving half of the connections.
  set(SOL_SOCKET, SO_REUSEADDR, 1);
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeout);
  set(IPPROTO_IPV6, IPV6_V6ONLY, dual_stack ? 0 : 1);
}

int new_socket(sa_family_t family) {
  return socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

// A listening socket, or -1 and errno.
int listen_on(const sockaddr* address, socklen_t size, bool dual_stack) {
  const int descriptor = new_socket(address->sa_family);
  if (descriptor < 0) return -1;
  if (address->sa_family != AF_UNIX) set_options(descriptor, dual_stack);
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
  // The port has the same offset for IPv4 and IPv6.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
}

bool is_wildcard(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr == INADDR_ANY;
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
  return address->sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr);
}

// One socket for all addresses, IPv4 and IPv6; -1 on a machine without IPv6.
int listen_everywhere(int port) {
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  any.sin6_port = htons(static_cast<uint16_t>(port));
  return listen_on(reinterpret_cast<const sockaddr*>(&any), sizeof(any), /*dual_stack=*/true);
}

int listen_at(const addrinfo& at, int port) {
  if (is_wildcard(at.ai_addr)) {
    const int descriptor = listen_everywhere(port);
    if (descriptor >= 0 || errno == EADDRINUSE) return descriptor;
  }
  // The port has the same offset for IPv4 and IPv6.
  reinterpret_cast<sockaddr_in*>(at.ai_addr)->sin_port = htons(static_cast<uint16_t>(port));
  return listen_on(at.ai_addr, at.ai_addrlen, /*dual_stack=*/false);
}

const sockaddr* raw(const UnixAddress& address) {
  return reinterpret_cast<const sockaddr*>(&address.name);
}

std::optional<UnixAddress> unix_address_of(const Wanted& wanted) {
  try {
    return to_unix_address(wanted.address);
  } catch (const std::runtime_error& error) {
    fail(wanted, error.what());
  }
}

// A socket's file on which no process listens.
bool is_stale(const UnixAddress& address) {
  struct stat status{};
  if (stat(address.path.c_str(), &status) != 0 || !S_ISSOCK(status.st_mode)) return false;
  const int probe = new_socket(AF_UNIX);
  if (probe < 0) return false;
  const bool refused = connect(probe, raw(address), address.size) != 0 && errno == ECONNREFUSED;
  close(probe);
  return refused;
}

BoundSockets bind_unix(const Wanted& wanted, const UnixAddress& at) {
  const int descriptor = listen_on_unix(at);
  if (descriptor < 0) fail(wanted, std::strerror(errno));
  return {.descriptors = {descriptor}, .path = at.path};
}

}  // namespace

BoundSockets bind_all(const std::string& address, const std::string& flag) {
  const Wanted wanted{address, flag};
  if (const auto at = unix_address_of(wanted)) return bind_unix(wanted, *at);
  const HostAndPort at = host_and_port(wanted);
  const AddressList addresses = resolve(wanted, at);
  BoundSockets bound{.descriptors = {}, .port = at.port};
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
  // A name may resolve to an address that this machine does not have; a port in use is an error.
  if (bound.descriptors.empty() || error == EADDRINUSE) {
    for (const int descriptor : bound.descriptors) close(descriptor);
    fail(wanted, std::strerror(error));
  }
  return bound;
}

std::string unix_socket_path(const std::string& address) {
  const auto unix_address = to_unix_address(address);
  return unix_address ? unix_address->path : std::string();
}

bool is_local_address(const std::string& address, const std::string& flag) {
  const Wanted wanted{address, flag};
  if (unix_address_of(wanted)) return true;
  const AddressList found = resolve(wanted, host_and_port(wanted));
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
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

std::optional<UnixAddress> to_unix_address(const std::string& address) {
  static constexpr std::string_view kFile = "unix:", kAbstract = "unix-abstract:";
  const bool is_file = address.starts_with(kFile);
  if (!is_file && !address.starts_with(kAbstract)) return {};
  std::string name = address.substr(is_file ? kFile.size() : kAbstract.size());
  if (is_file && name.starts_with("///")) name = name.substr(2);
  if (name.empty()) return {};
  UnixAddress found;
  const size_t zero = is_file ? 0 : 1;  // an abstract name follows a zero byte
  if (name.size() + 1 > sizeof(found.name.sun_path)) {
    throw std::runtime_error(fmt::format("the name has {} bytes, the limit is {}", name.size(),
                                         sizeof(found.name.sun_path) - 1));
  }
  found.name.sun_family = AF_UNIX;
  std::memcpy(found.name.sun_path + zero, name.data(), name.size());
  found.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() + 1);
  if (is_file) found.path = name;
  return found;
}

int listen_on_unix(const UnixAddress& address) {
  if (!address.path.empty() && is_stale(address)) unlink(address.path.c_str());
  return listen_on(raw(address), address.size, /*dual_stack=*/false);
}

}  // namespace recurve
