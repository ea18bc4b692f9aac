#pragma once
#include <sys/socket.h>
#include <sys/un.h>

#include <optional>
#include <string>
#include <vector>

namespace recurve {

struct BoundSockets {
  std::vector<int> descriptors;  // listening, non-blocking; the caller closes them
  int port = 0;                  // 0: a Unix socket
  std::string path;              // of a Unix socket's file, which the caller removes; empty: none
};

// Binds and listens on an address of the form that Listener describes. Throws std::runtime_error
// with a sentence, which names `flag` as what sets the address.
BoundSockets bind_all(const std::string& address, const std::string& flag);

// The file of a unix:PATH address; empty for any other address.
std::string unix_socket_path(const std::string& address);

// Whether only this machine can connect to the address. Throws as bind_all() does if the address is
// invalid or its name has no address.
bool is_local_address(const std::string& address, const std::string& flag);

struct UnixAddress {
  sockaddr_un name{};
  socklen_t size = 0;
  std::string path;  // empty: an abstract name, which is not a file
};

// Parses unix:PATH, unix:///PATH or unix-abstract:NAME. Nothing for any other address and for an
// empty name. Throws std::runtime_error with a sentence if the name is too long.
std::optional<UnixAddress> to_unix_address(const std::string& address);

// A non-blocking listening socket, or -1 and errno. Replaces the socket file of a server that no
// longer runs.
int listen_on_unix(const UnixAddress& address);

}  // namespace recurve
