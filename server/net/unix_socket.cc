#include "server/net/unix_socket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <stdexcept>

namespace recurve {
namespace {

const sockaddr* raw(const UnixAddress& address) {
  return reinterpret_cast<const sockaddr*>(&address.name);
}

int new_socket() { return socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }

// A socket's file that nobody listens behind.
bool is_left_behind(const UnixAddress& address) {
  struct stat status{};
  if (stat(address.path.c_str(), &status) != 0 || !S_ISSOCK(status.st_mode)) return false;
  const int probe = new_socket();
  if (probe < 0) return false;
  const bool refused = connect(probe, raw(address), address.size) != 0 && errno == ECONNREFUSED;
  close(probe);
  return refused;
}

}  // namespace

std::optional<UnixAddress> to_unix_address(const std::string& address) {
  static constexpr std::string_view kFile = "unix:", kAbstract = "unix-abstract:";
  const bool is_file = address.starts_with(kFile);
  if (!is_file && !address.starts_with(kAbstract)) return {};
  std::string name = address.substr(is_file ? kFile.size() : kAbstract.size());
  if (is_file && name.starts_with("///")) name = name.substr(2);
  if (name.empty()) return {};
  UnixAddress found;
  const size_t zero = is_file ? 0 : 1;  // an abstract name stands behind one
  if (name.size() + 1 > sizeof(found.name.sun_path)) {
    throw std::runtime_error(
        fmt::format("cannot listen on \"{}\": the name has {} bytes, and the system takes {}; "
                    "choose another with --listen",
                    address, name.size(), sizeof(found.name.sun_path) - 1));
  }
  found.name.sun_family = AF_UNIX;
  std::memcpy(found.name.sun_path + zero, name.data(), name.size());
  found.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() + 1);
  if (is_file) found.path = name;
  return found;
}

int listen_on_unix(const UnixAddress& address) {
  if (!address.path.empty() && is_left_behind(address)) unlink(address.path.c_str());
  const int descriptor = new_socket();
  if (descriptor < 0) return -1;
  if (bind(descriptor, raw(address), address.size) == 0 && listen(descriptor, SOMAXCONN) == 0) {
    return descriptor;
  }
  const int error = errno;
  close(descriptor);
  errno = error;
  return -1;
}

}  // namespace recurve
