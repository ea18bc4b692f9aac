#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "server/text/work_limits.h"

namespace recurve {

// JSON of a client that is refused; what() is for the client. `field`: a name that is said twice.
struct JsonRefused : TextRefused {
  explicit JsonRefused(const std::string& sentence, std::string field_ = {})
      : TextRefused(sentence), field(std::move(field_)) {}
  std::string field;
};

// Reads JSON in time and memory of its bytes, whatever it is: of at most so many levels, each name
// said once in its object, and values that take at most four times the text, and 8 MB for short
// ones. `what` it is, for the sentences ("the body"). Throws JsonRefused, and what the limits
// throw.
nlohmann::json read_client_json(std::string_view text, std::string_view what, size_t most_levels,
                                const WorkLimits& work);

// Bytes that values may take, of a message of so many.
constexpr size_t most_bytes_of_values(size_t message) { return 4 * message + (size_t{8} << 20); }

}  // namespace recurve
