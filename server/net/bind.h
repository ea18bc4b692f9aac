#pragma once
#include <string>
#include <vector>

namespace recurve {

struct Bound {
  std::vector<int> descriptors;  // listening, non-blocking; the caller's to close
  int port = 0;
};

// Sockets that listen on HOST:PORT: see Listener. Throws std::runtime_error with a sentence.
Bound bind_all(const std::string& address);

}  // namespace recurve
