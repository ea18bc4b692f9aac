#pragma once
#include <string>
#include <vector>

namespace recurve {

struct Bound {
  std::vector<int> descriptors;  // listening, non-blocking; the caller's to close
  int port = 0;                  // 0: of this machine alone
  std::string path;              // a socket's file, which is the caller's to remove; empty: none
};

// Sockets that listen on an address: see Listener. Throws std::runtime_error with a sentence.
Bound bind_all(const std::string& address);

// The file of a socket of this machine, of an address that is one; else empty.
std::string file_of_address(const std::string& address);

// Whether this machine alone can reach what listens there. False also for what is no address.
bool is_of_this_machine(const std::string& address);

}  // namespace recurve
