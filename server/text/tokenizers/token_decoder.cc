#include "server/text/tokenizers/token_decoder.h"

#include <array>

#include "server/text/models/byte_level.h"

namespace recurve {
namespace {

void replace_all(std::string_view from, std::string_view to, std::string& text) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

// Does what WordPiece's cleanup in `tokenizers` does, in its order.
void clean_up(std::string& text) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kRules = {{
      {" .", "."},
      {" ?", "?"},
      {" !", "!"},
      {" ,", ","},
      {" ' ", "'"},
      {" n't", "n't"},
      {" 'm", "'m"},
      {" do not", " don't"},
      {" 's", "'s"},
      {" 've", "'ve"},
      {" 're", "'re"},
  }};
  for (const auto& [from, to] : kRules) replace_all(from, to, text);
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

}  // namespace

int byte_of_name(std::string_view name) {
  if (name.size() != 6 || !name.starts_with("<0x") || name[5] != '>') return -1;
  const int high = hex_digit(name[3]), low = hex_digit(name[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string TokenDecoder::bytes_of(std::string_view name, bool first) const {
  if (kind == Kind::kByteLevel) return undo_byte_level(name).value_or(std::string(name));
  std::string text(name);
  if (kind == Kind::kMetaspace) {
    replace_all(mark, first && drops_first_marks ? "" : " ", text);
  } else if (kind == Kind::kWordPiece) {
    if (!first) text = name.starts_with(mark) ? text.substr(mark.size()) : " " + text;
    if (cleanup) clean_up(text);
  }
  for (const auto& [from, to] : replacements) replace_all(from, to, text);
  const int byte = byte_fallback ? byte_of_name(text) : -1;
  return byte < 0 ? text : std::string(1, static_cast<char>(byte));
}

LeadingSpace TokenDecoder::leading_space() const {
  if (kind == Kind::kMetaspace || kind == Kind::kWordPiece) return LeadingSpace::kFirstDiffers;
  return strips_space ? LeadingSpace::kStripOnce : LeadingSpace::kKeep;
}

}  // namespace recurve
