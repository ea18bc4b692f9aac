#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/text/json/json_bytes.h"
#include "server/text/work_limits.h"

namespace recurve {

// JSON of a client that is refused; what() is for the client. `field`: a name that is said twice.
struct JsonRefused : TextRefused {
  explicit JsonRefused(const std::string& sentence, std::string field_ = {})
      : TextRefused(sentence), field(std::move(field_)) {}
  std::string field;
};

// What a client sends, with the members of objects in their order.
using ClientJson = nlohmann::ordered_json;

// How many values may still be read, by one or several calls.
struct ValueBudget {
  size_t most;
  size_t left = most;
};
// The budget is spent.
struct TooManyValues : JsonRefused {
  using JsonRefused::JsonRefused;
};

// Reads JSON in time and memory of its bytes, whatever it is: of at most so many levels and values,
// each name said once in its object. `what` it is, for the sentences ("the body"). Throws
// JsonRefused, and what the limits throw.
//
// `id_fields`: members of the object that hold lists of token ids, or lists of such lists. Each
// list of integers there is no array but a binary value, from which take_ids() takes the ids: they
// take 4 bytes each, and do not count as values. JsonRefused too where something else follows an
// integer.
ClientJson read_client_json(std::string_view text, std::string_view what, size_t most_levels,
                            const WorkLimits& work, ValueBudget& budget,
                            std::span<const std::string_view> id_fields = {});
// The ids of a binary value, which has none afterwards; -1: one of another range than int32's.
std::vector<int32_t> take_ids(ClientJson& value);

}  // namespace recurve
