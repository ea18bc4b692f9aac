#pragma once
#include <sys/socket.h>
#include <sys/un.h>

#include <optional>
#include <string>

namespace recurve {

// The address of a socket of this machine.
struct UnixAddress {
  sockaddr_un name{};
  socklen_t size = 0;
  std::string path;  // empty: an abstract name, which is no file
};

// From unix:PATH, unix:///PATH or unix-abstract:NAME; nothing for an address that is neither, or
// empty. Throws std::runtime_error with a sentence where the system has no room for the name.
std::optional<UnixAddress> to_unix_address(const std::string& address);

// A socket that listens there, non-blocking, or -1, and errno says why. A file that a server which
// is gone has left behind is replaced.
int listen_on_unix(const UnixAddress& address);

}  // namespace recurve
