#pragma once
#include <chrono>

namespace recurve {

// A signal within this time of the one that stopped a call or a run is the same request to stop,
// which may reach the process twice: once itself and once through its process group.
inline constexpr std::chrono::seconds kSameStop{1};

}  // namespace recurve
