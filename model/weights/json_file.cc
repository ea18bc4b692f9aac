#include "model/weights/json_file.h"

#include <fmt/format.h>

#include <set>
#include <stdexcept>
#include <vector>

#include "model/weights/mapped_file.h"
#include "model/weights/tensor_view.h"

namespace recurve {
namespace {

using nlohmann::json;

// Follows the parser through the objects it is in, and throws at a key that comes twice.
class KeyGuard {
 public:
  explicit KeyGuard(const std::string& file) : file_(file) {}

  bool operator()(int depth, json::parse_event_t event, const json& parsed) {
    using Event = json::parse_event_t;
    if (depth > kMaxJsonDepth) {
      throw std::runtime_error(
          fmt::format("{}: wanted JSON of at most {} levels, found more", file_, kMaxJsonDepth));
    }
    if (event == Event::object_start) keys_.emplace_back();
    if (event == Event::object_end) keys_.pop_back();
    if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second) {
        throw std::runtime_error(
            fmt::format("{}: wanted each key once, found {} twice", file_, in_quotes(key)));
      }
    }
    return true;
  }

 private:
  const std::string& file_;
  std::vector<std::set<std::string>> keys_;  // of the open objects, outermost first
};

}  // namespace

json parse_json_object(std::string_view text, const std::string& file) {
  // The parser takes a zero for the end and would not look at what follows.
  if (const size_t zero = text.find('\0'); zero != text.npos) {
    throw std::runtime_error(
        fmt::format("{}: wanted JSON, found a zero at byte {}", file, zero + 1));
  }
  json parsed;
  try {
    KeyGuard guard(file);
    parsed = json::parse(text.begin(), text.end(),
                         [&guard](int depth, json::parse_event_t event, const json& value) {
                           return guard(depth, event, value);
                         });
  } catch (const json::parse_error& error) {
    throw std::runtime_error(
        fmt::format("{}: wanted JSON, found none at byte {}", file, error.byte));
  } catch (const json::exception&) {  // a number beyond what a double holds
    throw std::runtime_error(fmt::format("{}: wanted JSON, found a number out of range", file));
  }
  if (!parsed.is_object()) {
    throw std::runtime_error(
        fmt::format("{}: wanted a JSON object, found {}", file, parsed.type_name()));
  }
  return parsed;
}

json read_json_file(const std::filesystem::path& path, size_t max_bytes) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  if (bytes.size() > max_bytes) {
    throw std::runtime_error(
        fmt::format("{}: wanted at most {} bytes, found {}", file.path(), max_bytes, bytes.size()));
  }
  return parse_json_object({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                           file.path());
}

}  // namespace recurve
