#pragma once
#include <fmt/format.h>

#include <random>
#include <string>

namespace recurve {

// For a session or a request that is to be made, and must be known before it is: proxies send a
// session's calls by the name in their metadata, and a request is repeated by its id.
inline std::string made_name() {
  std::random_device random;
  return fmt::format("cpp-{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

}  // namespace recurve
