#include "server/text/normalizers/charsmap.h"

#include <fmt/core.h>

#include <stdexcept>

#include "server/text/utf8.h"

namespace recurve {
namespace {

constexpr size_t kMostBytes = 4 << 20;        // public models have about 240 KB
constexpr size_t kLongestReplacement = 1024;  // the longest in Unicode has 33 bytes

[[noreturn]] void invalid(const std::string& reason) {
  throw std::runtime_error("precompiled_charsmap is invalid: " + reason);
}

uint32_t six_bits(char c) {
  static constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const size_t value = kAlphabet.find(c);
  if (value == kAlphabet.npos) invalid("it is not base64");
  return static_cast<uint32_t>(value);
}

std::string decode_base64(std::string_view text) {
  if (text.size() % 4 != 0) invalid("its base64 text is not a multiple of four characters long");
  for (int i = 0; i < 2 && text.ends_with('='); ++i) text.remove_suffix(1);
  std::string bytes;
  uint32_t bits = 0;
  int held = 0;  // bits of an incomplete byte
  for (const char c : text) {
    bits = bits << 6 | six_bits(c);
    held += 6;
    if (held < 8) continue;
    held -= 8;
    bytes.push_back(static_cast<char>(bits >> held & 0xFF));
  }
  return bytes;
}

uint32_t little_endian(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    value |= uint32_t{static_cast<unsigned char>(bytes[at + i])} << 8 * i;
  }
  return value;
}

// The fields of a unit that is a node: its byte, whether a key ends there, and the offset of its
// children. Bit 31 marks a unit that is a value and has no byte.
uint32_t label(uint32_t unit) { return unit & 0x800000FF; }
bool has_value(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t offset(uint32_t unit) { return unit >> 10 << ((unit >> 9 & 1) * 8); }

}  // namespace

CharsMap::CharsMap(std::string_view base64) {
  if (base64.size() / 4 * 3 > kMostBytes) {
    invalid(fmt::format("it has more than {} bytes", kMostBytes));
  }
  read(decode_base64(base64));
}

CharsMap CharsMap::from_bytes(std::string_view bytes) {
  if (bytes.size() > kMostBytes) invalid(fmt::format("it has more than {} bytes", kMostBytes));
  CharsMap map;
  map.read(bytes);
  return map;
}

void CharsMap::read(std::string_view bytes) {
  const size_t array = bytes.size() < 4 ? 0 : little_endian(bytes, 0);
  if (array == 0 || array % 4 != 0 || array > bytes.size() - 4) {
    invalid(fmt::format("its trie has {} bytes, the whole map {}", array, bytes.size()));
  }
  for (size_t at = 4; at < 4 + array; at += 4) units_.push_back(little_endian(bytes, at));
  strings_ = bytes.substr(4 + array);
  root_ = offset(units_[0]);
  check_values();
}

std::optional<uint32_t> CharsMap::child(uint32_t node, unsigned char byte, bool* ends) const {
  const uint32_t at = node ^ byte;
  if (at >= units_.size() || label(units_[at]) != byte) return {};
  *ends = has_value(units_[at]);
  return at ^ offset(units_[at]);
}

std::optional<std::string_view> CharsMap::find(std::string_view utf8) const {
  uint32_t node = root_;
  for (const char c : utf8) {
    if (c == 0) return {};  // ends every key
    bool ends = false;
    const auto next = child(node, static_cast<unsigned char>(c), &ends);
    if (!next) return {};
    if (ends) return replacement(*next);
    node = *next;
  }
  return {};
}

CharsMap::Longest CharsMap::find_longest(std::string_view utf8) const {
  Longest longest;
  uint32_t node = root_;
  for (size_t i = 0; i < utf8.size(); ++i) {
    if (utf8[i] == 0) return longest;  // ends every key
    bool ends = false;
    const auto next = child(node, static_cast<unsigned char>(utf8[i]), &ends);
    if (!next) return longest;
    node = *next;
    if (!ends) continue;
    longest.bytes = i + 1;
    longest.replacement = replacement(node);
  }
  longest.open = true;
  return longest;
}

// Visits each unit that the two functions above can reach once, even if the units form a cycle.
void CharsMap::check_values() const {
  std::vector<bool> seen(units_.size());
  std::vector<uint32_t> to_visit = {root_};
  while (!to_visit.empty()) {
    const uint32_t node = to_visit.back();
    to_visit.pop_back();
    for (int byte = 1; byte < 256; ++byte) {
      bool ends = false;
      const auto next = child(node, static_cast<unsigned char>(byte), &ends);
      if (!next) continue;
      if (ends && !is_valid_utf8(replacement(*next))) invalid("a replacement is not UTF-8");
      const uint32_t at = node ^ static_cast<uint32_t>(byte);
      if (!seen[at]) to_visit.push_back(*next);
      seen[at] = true;
    }
  }
}

std::string_view CharsMap::replacement(uint32_t node) const {
  const size_t begin = node < units_.size() ? units_[node] & 0x7FFFFFFF : strings_.size();
  if (begin >= strings_.size()) invalid("a value is outside of its strings");
  const std::string_view rest = std::string_view(strings_).substr(begin, kLongestReplacement + 1);
  const size_t size = rest.find('\0');
  if (size == rest.npos) invalid("a replacement is too long or has no end");
  return rest.substr(0, size);
}

}  // namespace recurve
