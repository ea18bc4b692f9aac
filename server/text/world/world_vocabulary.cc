#include <fmt/core.h>

#include <charconv>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <unordered_set>

#include "server/text/characters.h"
#include "server/text/world/world_tokenizer.h"

namespace recurve {
namespace {

constexpr int32_t kMostIds = 1 << 20;

[[noreturn]] void refuse(size_t line, const std::string& why) {
  throw std::runtime_error(fmt::format("line {}: {}", line, why));
}

std::optional<uint32_t> number(std::string_view digits, int base) {
  uint32_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto [stopped, error] = std::from_chars(digits.data(), end, value, base);
  if (digits.empty() || error != std::errc() || stopped != end) return std::nullopt;
  return value;
}

// Reads a string or bytes literal of Python.
class Literal {
 public:
  Literal(std::string_view text, size_t line) : line_(line) {
    bytes_ = text.starts_with('b');
    rest_ = text.substr(bytes_ ? 1 : 0);
    const bool quoted =
        rest_.size() >= 2 && (rest_[0] == '\'' || rest_[0] == '"') && rest_.back() == rest_[0];
    if (!quoted) refuse(line_, "expected a literal in quotes");
    quote_ = rest_[0];
    rest_ = rest_.substr(1, rest_.size() - 2);
  }

  std::string read() {
    std::string out;
    while (!rest_.empty()) {
      const char c = take();
      if (c == quote_) refuse(line_, "the literal ends before the last number of the line");
      if (c == '\\') {
        escape(&out);
      } else {
        out.push_back(c);
      }
    }
    return out;
  }

 private:
  char take() {
    if (rest_.empty()) refuse(line_, "the literal ends in an escape");
    const char c = rest_.front();
    rest_.remove_prefix(1);
    return c;
  }

  // \xNN, \uNNNN and \UNNNNNNNN are a code point in a string, and a byte in bytes.
  void escape(std::string* out) {
    const char c = take();
    switch (c) {
      case 'n':
        return out->push_back('\n');
      case 't':
        return out->push_back('\t');
      case 'r':
        return out->push_back('\r');
      case '\\':
      case '\'':
      case '"':
        return out->push_back(c);
      case 'x':
        return code(2, out);
      case 'u':
        return code(bytes_ ? 0 : 4, out);
      case 'U':
        return code(bytes_ ? 0 : 8, out);
      default:
        refuse(line_, fmt::format("the escape \\{} is not supported", c));
    }
  }

  void code(size_t digits, std::string* out) {
    const auto value = digits > rest_.size() ? std::nullopt : number(rest_.substr(0, digits), 16);
    const bool point = value && *value <= 0x10FFFF && (*value < 0xD800 || *value > 0xDFFF);
    if (!point) refuse(line_, "an escape is not a valid character");
    rest_.remove_prefix(digits);
    if (bytes_) {
      out->push_back(static_cast<char>(*value));
    } else {
      append_utf8(*value, *out);
    }
  }

  const size_t line_;
  bool bytes_;
  char quote_;
  std::string_view rest_;
};

struct Entry {
  uint32_t id;
  std::string bytes;
};

Entry read_line(std::string_view text, size_t line) {
  const size_t first = text.find(' '), last = text.rfind(' ');
  if (first == text.npos || first == last) refuse(line, "expected ID LITERAL BYTES");
  const auto id = number(text.substr(0, first), 10), size = number(text.substr(last + 1), 10);
  if (!id || *id == 0 || *id >= static_cast<uint32_t>(kMostIds)) {
    refuse(line, fmt::format("expected an id from 1 to {}", kMostIds - 1));
  }
  Entry entry{*id, Literal(text.substr(first + 1, last - first - 1), line).read()};
  if (!size || *size != entry.bytes.size() || entry.bytes.empty()) {
    refuse(line, fmt::format("the literal has {} bytes, expected {}", entry.bytes.size(),
                             text.substr(last + 1)));
  }
  return entry;
}

}  // namespace

std::vector<std::string> read_world_vocabulary(std::string_view text) {
  std::vector<std::string> entries(1);
  std::unordered_set<std::string> seen;
  size_t line = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view one = text.substr(0, end);
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    if (one.ends_with('\r')) one.remove_suffix(1);
    ++line;
    if (one.empty()) continue;
    Entry entry = read_line(one, line);
    if (entry.id >= entries.size()) entries.resize(entry.id + 1);
    if (!entries[entry.id].empty() || !seen.insert(entry.bytes).second) {
      refuse(line, fmt::format("the id {} or its bytes occur twice", entry.id));
    }
    entries[entry.id] = std::move(entry.bytes);
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (seen.contains(std::string(1, static_cast<char>(byte)))) continue;
    throw std::runtime_error(
        fmt::format("expected an entry for each single byte, found none for 0x{:02x}", byte));
  }
  return entries;
}

}  // namespace recurve
