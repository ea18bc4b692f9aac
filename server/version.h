#pragma once

namespace recurve {
inline constexpr const char* kVersion = "0.1.0";
}  // namespace recurve
