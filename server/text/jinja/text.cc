#include "server/text/jinja/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <functional>

namespace recurve::jinja {
namespace {

using CaseMap = utf8proc_int32_t (*)(utf8proc_int32_t);

void append_mapped(const Text& text, const Character& c, CaseMap map, Text* out) {
  utf8proc_uint8_t buffer[4];
  const auto size = static_cast<size_t>(utf8proc_encode_char(map(c.code), buffer));
  out->append(std::string_view(reinterpret_cast<const char*>(buffer), size), text.origin(c.begin));
}

bool is_cased(int32_t code) {
  const utf8proc_category_t category = utf8proc_category(code);
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
         category == UTF8PROC_CATEGORY_LT;
}

// Which characters strip() takes.
std::function<bool(const Character&)> stripped(const Text& text,
                                               const std::optional<std::string>& of) {
  if (!of) return [](const Character& c) { return is_space(c.code); };
  return [&text, &of](const Character& c) {
    const auto character = std::string_view(text.bytes).substr(c.begin, c.end - c.begin);
    return of->find(character) != of->npos;  // UTF-8: never in the middle of a character
  };
}

std::vector<ByteSpan> words(const Text& text) {
  std::vector<ByteSpan> words;
  bool inside = false;
  for (const Character& c : characters(text.bytes)) {
    const bool space = is_space(c.code);
    if (!space && !inside) words.push_back({c.begin, c.end});
    if (!space) words.back().end = c.end;
    inside = !space;
  }
  return words;
}

std::vector<ByteSpan> occurrences(std::string_view text, std::string_view of) {
  std::vector<ByteSpan> found;
  for (size_t at = text.find(of); at != text.npos; at = text.find(of, at + of.size())) {
    found.push_back({at, at + of.size()});
  }
  return found;
}

// What lies between the spans.
std::vector<Text> between(const Text& text, const std::vector<ByteSpan>& spans) {
  std::vector<Text> parts;
  size_t begin = 0;
  for (const ByteSpan& span : spans) {
    parts.push_back(text.part(begin, span.begin));
    begin = span.end;
  }
  parts.push_back(text.part(begin, text.bytes.size()));
  return parts;
}

// The rest of a split at white space whose limit is reached keeps its inner spaces.
std::vector<Text> split_words(const Text& text, int64_t most, bool from_right) {
  const std::vector<ByteSpan> all = words(text);
  std::vector<Text> parts;
  const size_t limit = most < 0 ? all.size() : static_cast<size_t>(most);
  if (all.size() <= limit) {
    for (const ByteSpan& word : all) parts.push_back(text.part(word.begin, word.end));
  } else if (from_right) {
    const size_t kept = all.size() - limit;
    const Text head = text.part(0, all[kept - 1].end);
    parts.push_back(head);
    for (size_t i = kept; i < all.size(); ++i) parts.push_back(text.part(all[i].begin, all[i].end));
    parts.front() = strip(head, Side::kRight);
  } else {
    for (size_t i = 0; i < limit; ++i) parts.push_back(text.part(all[i].begin, all[i].end));
    parts.push_back(text.part(all[limit].begin, text.bytes.size()));
  }
  return parts;
}

bool ends_line(int32_t code) {  // str.splitlines
  return code == '\n' || code == '\r' || code == 0x0B || code == 0x0C ||
         (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 || code == 0x2029;
}

Text mapped(const Text& text, CaseMap map) {
  Text out;
  for (const Character& c : characters(text.bytes)) append_mapped(text, c, map, &out);
  return out;
}

}  // namespace

void Text::append(const Text& other) {
  bytes += other.bytes;
  origins += other.origins;
}

void Text::append(std::string_view text, Origin origin) {
  bytes += text;
  origins.append(text.size(), static_cast<char>(origin));
}

Text Text::part(size_t begin, size_t end) const {
  Text out;
  out.bytes = bytes.substr(begin, end - begin);
  out.origins = origins.substr(begin, end - begin);
  return out;
}

std::vector<Character> characters(std::string_view utf8) {
  std::vector<Character> all;
  for (size_t at = 0; at < utf8.size();) {
    utf8proc_int32_t code = 0;
    const auto size = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(utf8.data() + at),
                                       static_cast<utf8proc_ssize_t>(utf8.size() - at), &code);
    const size_t step = size > 0 ? static_cast<size_t>(size) : 1;
    all.push_back({size > 0 ? code : 0xFFFD, at, at + step});
    at += step;
  }
  return all;
}

size_t count_characters(std::string_view utf8) {
  return static_cast<size_t>(std::count_if(utf8.begin(), utf8.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

bool is_space(int32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 ||
         code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
         code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

Text strip(const Text& text, Side side, const std::optional<std::string>& of) {
  const std::vector<Character> all = characters(text.bytes);
  const auto taken = stripped(text, of);
  size_t first = 0, last = all.size();
  if (side != Side::kRight) {
    while (first < last && taken(all[first])) ++first;
  }
  if (side != Side::kLeft) {
    while (last > first && taken(all[last - 1])) --last;
  }
  return first == last ? Text() : text.part(all[first].begin, all[last - 1].end);
}

std::vector<Text> split(const Text& text, const std::optional<std::string>& separator,
                        int64_t most) {
  if (!separator) return split_words(text, most, false);
  std::vector<ByteSpan> at = occurrences(text.bytes, *separator);
  if (most >= 0 && at.size() > static_cast<size_t>(most)) at.resize(static_cast<size_t>(most));
  return between(text, at);
}

std::vector<Text> rsplit(const Text& text, const std::optional<std::string>& separator,
                         int64_t most) {
  if (!separator) return split_words(text, most, true);
  std::vector<ByteSpan> at;
  std::string_view left = text.bytes;  // from the right: occurrences may overlap
  while (most < 0 || at.size() < static_cast<size_t>(most)) {
    const size_t found = left.rfind(*separator);
    if (found == left.npos) break;
    at.push_back({found, found + separator->size()});
    left = left.substr(0, found);
  }
  std::reverse(at.begin(), at.end());
  return between(text, at);
}

std::vector<Text> splitlines(const Text& text) {
  std::vector<Text> lines;
  const std::vector<Character> all = characters(text.bytes);
  size_t begin = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!ends_line(all[i].code)) continue;
    lines.push_back(text.part(begin, all[i].begin));
    if (all[i].code == '\r' && i + 1 < all.size() && all[i + 1].code == '\n') ++i;
    begin = all[i].end;
  }
  if (begin < text.bytes.size()) lines.push_back(text.part(begin, text.bytes.size()));
  return lines;
}

Text replace(const Text& text, std::string_view from, const Text& to, int64_t most) {
  std::vector<ByteSpan> at;
  if (from.empty()) {  // in front of every character and at the end
    for (const Character& c : characters(text.bytes)) at.push_back({c.begin, c.begin});
    at.push_back({text.bytes.size(), text.bytes.size()});
  } else {
    at = occurrences(text.bytes, from);
  }
  if (most >= 0 && at.size() > static_cast<size_t>(most)) at.resize(static_cast<size_t>(most));
  Text out;
  size_t begin = 0;
  for (const ByteSpan& span : at) {
    out.append(text.part(begin, span.begin));
    out.append(to);
    begin = span.end;
  }
  out.append(text.part(begin, text.bytes.size()));
  return out;
}

Text upper(const Text& text) { return mapped(text, utf8proc_toupper); }
Text lower(const Text& text) { return mapped(text, utf8proc_tolower); }

Text title(const Text& text) {
  Text out;
  bool inside = false;
  for (const Character& c : characters(text.bytes)) {
    append_mapped(text, c, inside ? utf8proc_tolower : utf8proc_totitle, &out);
    inside = is_cased(c.code);
  }
  return out;
}

Text capitalize(const Text& text) {
  Text out;
  for (const Character& c : characters(text.bytes)) {
    append_mapped(text, c, c.begin > 0 ? utf8proc_tolower : utf8proc_totitle, &out);
  }
  return out;
}

Text title_filter(const Text& text) {
  Text out;
  bool inside = false;
  for (const Character& c : characters(text.bytes)) {
    const bool border = is_space(c.code) || c.code == '-' || c.code == '(' || c.code == '{' ||
                        c.code == '[' || c.code == '<';
    append_mapped(text, c, inside ? utf8proc_tolower : utf8proc_toupper, &out);
    inside = !border;
  }
  return out;
}

Text indent(const Text& text, const Text& indention, bool first, bool blank) {
  Text with_end = text;
  with_end.append("\n", Origin::kTemplate);  // as Jinja does: the last line may be empty
  const std::vector<Text> lines = splitlines(with_end);
  Text out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n", Origin::kTemplate);
    const bool indented = i == 0 ? first : blank || !lines[i].empty();
    if (indented) out.append(indention);
    out.append(lines[i]);
  }
  return out;
}

}  // namespace recurve::jinja
