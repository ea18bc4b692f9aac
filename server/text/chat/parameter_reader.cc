#include "server/text/chat/parameter_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

namespace recurve {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostName = 1024;  // bytes of a parameter's name
// A JSON string. What is not UTF-8 is replaced.
std::string quoted(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The same for a part of a string, without quotes. It may begin and end within a character.
std::string escaped(std::string_view text) {
  std::string to;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\') {
      const std::string one = quoted(std::string_view(&c, 1));
      to.append(one, 1, one.size() - 2);
    } else {
      to += c;
    }
  }
  return to;
}

// Python's literals, which templates may write.
std::optional<std::string> python_value(std::string_view text, ValueTypes types) {
  if ((types & kBooleanType) != 0 && text == "True") return "true";
  if ((types & kBooleanType) != 0 && text == "False") return "false";
  if ((types & kNullType) != 0 && text == "None") return "null";
  return std::nullopt;
}

// The JSON of a value.
std::string value_of(std::string_view text, ValueTypes types) {
  const std::string_view bare = trimmed(text);
  const ValueTypes type = type_of_json(bare);
  if (type != kStringType && (type & types) != 0) return std::string(bare);
  if ((types & kStringType) != 0) return quoted(text);
  if (type != 0) return std::string(bare);
  return python_value(bare, types).value_or(quoted(text));
}

}  // namespace

void ParameterReader::begin(const ToolParameters& parameters, std::string* arguments) {
  *this = {};
  parameters_ = &parameters;
  *arguments += '{';
}

ParameterReader::Outcome ParameterReader::read(std::string* held, std::string* arguments) {
  Outcome outcome = Outcome::kMore;
  while (in_value_ ? read_value(held, arguments) : read_name(held, arguments, &outcome)) {
  }
  return outcome;
}

// Whether there may be another step.
bool ParameterReader::read_name(std::string* held, std::string* arguments, Outcome* outcome) {
  const size_t begin = std::min(held->find_first_not_of(kJsonSpaces), held->size());
  held->erase(0, begin);
  const std::string_view text = *held;
  if (text.starts_with(kFunctionClose) || text.starts_with("</tool_call>")) {
    if (text.starts_with(kFunctionClose)) held->erase(0, kFunctionClose.size());
    *arguments += '}';
    *outcome = Outcome::kEnd;
    return false;
  }
  if (text.starts_with(kParameterMark)) {
    const size_t from = kParameterMark.size(), end = text.find('>', from);
    if (end == std::string_view::npos && text.size() < kMostName) return false;
    if (end != std::string_view::npos && end > from && end < kMostName) {
      const std::string_view name = text.substr(from, end - from);
      types_ = parameters_->of(name);
      *arguments += (first_ ? "" : ", ") + quoted(name) + ": ";
      streams_ = types_ == kStringType;
      if (streams_) *arguments += '"';
      first_ = false;
      in_value_ = at_start_ = true;
      searched_ = 0;
      held->erase(0, end + 1);
      return true;
    }
  } else if (kParameterMark.starts_with(text) || kFunctionClose.starts_with(text) ||
             std::string_view("</tool_call>").starts_with(text)) {
    return false;
  }
  *outcome = Outcome::kBroken;
  return false;
}

// One line break at each end of a value is not part of it.
bool ParameterReader::read_value(std::string* held, std::string* arguments) {
  if (at_start_) {
    if (held->empty()) return false;
    if (held->front() == '\n') held->erase(0, 1);
    at_start_ = false;
  }
  const std::string_view close = parameter_close(types_);
  const size_t end = held->find(close, searched_);
  if (end == std::string::npos) {
    size_t certain = held->size() - begun(*held, close);
    if (!streams_) {
      searched_ = certain;
      return false;
    }
    if (certain > 0 && (*held)[certain - 1] == '\n') --certain;
    *arguments += escaped(std::string_view(*held).substr(0, certain));
    held->erase(0, certain);
    return false;
  }
  std::string_view value = std::string_view(*held).substr(0, end);
  if (!close.starts_with('\n') && value.ends_with('\n')) value.remove_suffix(1);
  *arguments += streams_ ? escaped(value) + '"' : value_of(value, types_);
  held->erase(0, end + close.size());
  in_value_ = false;
  return true;
}

}  // namespace recurve
