#include "model/weights/json_file.h"

#include <fmt/format.h>

#include <cctype>
#include <limits>
#include <set>
#include <stdexcept>
#include <vector>

#include "model/weights/mapped_file.h"
#include "model/weights/tensor_view.h"

namespace recurve {
namespace {

using nlohmann::json;

// What stands for an infinity between marking and parsing: a string as long as the word, of a
// character that no text may hold.
constexpr std::string_view kWord = "Infinity", kMark = R"("\ufdd0")", kNegativeMark = R"("\ufdd1")";
constexpr const char* kMarked = "\uFDD0";
constexpr const char* kNegativeMarked = "\uFDD1";
static_assert(kWord.size() == kMark.size());

bool is_word_part(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("_-+.").find(c) != std::string_view::npos;
}

// Puts marks over Infinity and -Infinity where they stand as values. The length stays, and so do
// the positions that messages name.
std::string mark_infinities(std::string_view text) {
  std::string marked(text);
  bool in_string = false;
  for (size_t at = 0; at < text.size(); ++at) {
    if (in_string && text[at] == '\\') {
      ++at;
    } else if (text[at] == '"') {
      in_string = !in_string;
    } else if (!in_string && text.substr(at).starts_with(kWord)) {
      const bool negative = at > 0 && text[at - 1] == '-';
      const size_t begin = negative ? at - 1 : at, end = at + kWord.size();
      const bool alone = (begin == 0 || !is_word_part(text[begin - 1])) &&
                         (end == text.size() || !is_word_part(text[end]));
      const size_t next = text.find_first_not_of(" \t\r\n", end);
      const bool key = next != text.npos && text[next] == ':';
      if (alone && !key) {
        marked.replace(at, kWord.size(), negative ? kNegativeMark : kMark);
        if (negative) marked[begin] = ' ';
      }
      at = end - 1;
    }
  }
  return marked;
}

void unmark_infinity(json& value) {
  if (!value.is_string()) return;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto& text = value.get_ref<const std::string&>();
  if (text == kMarked) {
    value = kInfinity;
  } else if (text == kNegativeMarked) {
    value = -kInfinity;
  }
}

// Follows the parser through the objects it is in, and throws at a key that comes twice.
class KeyGuard {
 public:
  explicit KeyGuard(const std::string& file) : file_(file) {}

  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    using Event = json::parse_event_t;
    if (depth > kMaxJsonDepth) {
      throw std::runtime_error(
          fmt::format("{}: wanted JSON of at most {} levels, found more", file_, kMaxJsonDepth));
    }
    if (event == Event::object_start) keys_.emplace_back();
    if (event == Event::object_end) keys_.pop_back();
    if (event == Event::value) unmark_infinity(parsed);
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
  // The parser takes a zero for the end and would not read what follows.
  if (const size_t zero = text.find('\0'); zero != text.npos) {
    throw std::runtime_error(
        fmt::format("{}: wanted JSON, found a zero at byte {}", file, zero + 1));
  }
  const std::string marked = mark_infinities(text);
  json parsed;
  try {
    KeyGuard guard(file);
    parsed = json::parse(marked, [&guard](int depth, json::parse_event_t event, json& value) {
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
