#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/utf8.h"

namespace recurve::jinja {

// Where a byte comes from, which decides whether it may be part of a control token.
enum class Origin : char {
  kTemplate,  // the template, or a file of the operator (bos_token)
  kMessage,   // a client: messages and tools
  kMark,      // a mark to find a position in the output; otherwise like kMessage
  kMark2,     // a second mark
};

// The origin of each byte of a text, stored as runs of equal origin.
class Origins {
 public:
  Origins() = default;
  Origins(size_t bytes, Origin origin) { append(bytes, origin); }

  size_t size() const { return end_; }  // in bytes
  Origin at(size_t byte) const;
  void append(size_t bytes, Origin origin);
  void append(const Origins& other, size_t begin, size_t end);  // part of another
  // Calls of(begin, end, origin) for each run in the range, in order. Adjacent runs have different
  // origins.
  template <typename Of>
  void for_each(size_t begin, size_t end, const Of& of) const;

 private:
  struct Run {
    size_t end;
    Origin origin;
  };
  std::vector<Run>::const_iterator run_of(size_t byte) const;  // end(): the last run

  std::vector<Run> before_;  // all runs except the last: most texts have one run
  size_t end_ = 0;           // of the last run
  Origin last_ = Origin::kTemplate;
};

// A string in UTF-8 with the origin of each byte. Methods of Python's str count characters (code
// points).
struct Text {
  Text() = default;
  Text(std::string_view text, Origin origin) : bytes(text), origins(text.size(), origin) {}
  static Text take(std::string text, Origin origin);  // without a copy

  void append(const Text& other);
  void append(std::string_view text, Origin origin);
  Text part(size_t begin, size_t end) const;  // in bytes, end excluded
  bool empty() const { return bytes.empty(); }
  Origin origin(size_t byte) const { return origins.at(byte); }

  std::string bytes;  // valid UTF-8
  Origins origins;    // of `bytes`
  // The result of the filter `safe` (markupsafe's Markup): text added to it by + is escaped as
  // HTML. Only copies and functions that mention it preserve it.
  bool markup = false;
};

template <typename Of>
void Origins::for_each(size_t begin, size_t end, const Of& of) const {
  for (auto run = run_of(begin); begin < end && run != before_.end(); ++run) {
    of(begin, std::min(run->end, end), run->origin);
    begin = std::min(run->end, end);
  }
  if (begin < end) of(begin, end, last_);
}

// One character of a text.
struct Character {
  int32_t code;
  size_t begin;  // in bytes
  size_t end;
};
Character character_at(std::string_view utf8, size_t begin);
Character character_before(std::string_view utf8, size_t end);

// The characters of a text: for (const Character& c : Characters(text)).
class Characters {
 public:
  struct Iterator {
    Character operator*() const { return character_at(utf8, at); }
    void operator++() { at = character_at(utf8, at).end; }
    bool operator!=(const Iterator& other) const { return at != other.at; }
    std::string_view utf8;
    size_t at;
  };
  explicit Characters(std::string_view utf8) : utf8_(utf8) {}
  Iterator begin() const { return {utf8_, 0}; }
  Iterator end() const { return {utf8_, utf8_.size()}; }

 private:
  const std::string_view utf8_;
};
bool is_space(int32_t code);  // Python's str.isspace
// std::string_view::find() in linear time for any texts.
size_t find_text(std::string_view text, std::string_view what, size_t from = 0);

// The methods of Python's str of these names. Case is mapped character by character, without the
// few mappings to several characters (the German sharp s) or that depend on the context (final
// sigma).
enum class Side { kLeft = 1, kRight = 2, kBoth = 3 };
Text strip(const Text& text, Side side, const std::optional<std::string>& of = {});
std::vector<Text> split(const Text& text, const std::optional<std::string>& separator,
                        int64_t most);  // most splits; < 0: no limit
std::vector<Text> rsplit(const Text& text, const std::optional<std::string>& separator,
                         int64_t most);
std::vector<Text> splitlines(const Text& text,
                             size_t most = SIZE_MAX);  // most lines, then the rest
Text replace(const Text& text, std::string_view from, const Text& to, int64_t most);
Text upper(const Text& text);
Text lower(const Text& text);
Text title(const Text& text);
Text capitalize(const Text& text);

// The text with &, <, >, ' and " as HTML entities; unchanged if it is markup. The result is markup.
Text escape_html(const Text& text);

// Jinja's filters of these names.
Text title_filter(const Text& text);
Text indent(const Text& text, const Text& indention, bool first, bool blank);

}  // namespace recurve::jinja
