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

// The same of a text that read_client_json() has read, with the members of objects in their order.
nlohmann::ordered_json read_in_order(std::string_view text);

// Frees a value at the end of its scope, list by list. nlohmann's destructor first moves all values
// of a list to another one, and takes up to three times their memory. Of few levels.
template <typename Json>
class FreesInPlace {
 public:
  explicit FreesInPlace(Json& value) : value_(value) {}
  ~FreesInPlace() { free(value_); }
  FreesInPlace(const FreesInPlace&) = delete;
  FreesInPlace& operator=(const FreesInPlace&) = delete;

 private:
  static void free(Json& value) {
    if (auto* list = value.template get_ptr<typename Json::array_t*>()) {
      for (Json& one : *list) free(one);
      typename Json::array_t().swap(*list);
    } else if (auto* object = value.template get_ptr<typename Json::object_t*>()) {
      for (auto& member : *object) free(member.second);
      object->clear();
    }
  }
  Json& value_;
};

// Bytes that values may take, of a message of so many.
constexpr size_t most_bytes_of_values(size_t message) { return 4 * message + (size_t{8} << 20); }

}  // namespace recurve
