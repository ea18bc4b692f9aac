#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace recurve {

// A field of a target's query, "a=1&b=x%20y", decoded; nothing where it does not stand there. Of
// several the first.
std::optional<std::string> query_field(std::string_view query, std::string_view name);

}  // namespace recurve
