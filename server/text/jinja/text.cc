#include "server/text/jinja/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "server/text/characters.h"
#include "server/text/utf8.h"

namespace recurve::jinja {
namespace {

using CaseMap = utf8proc_int32_t (*)(utf8proc_int32_t);

void append_mapped(const Text& text, const Character& c, CaseMap map, Text* out) {
  std::string mapped;
  append_utf8(static_cast<char32_t>(map(c.code)), mapped);
  out->append(mapped, text.origin(c.begin));
}

bool is_cased(int32_t code) {
  const utf8proc_category_t category = utf8proc_category(code);
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
         category == UTF8PROC_CATEGORY_LT;
}

// The characters that strip() removes.
std::function<bool(const Character&)> stripped(const Text& text,
                                               const std::optional<std::string>& of) {
  if (!of) return [](const Character& c) { return is_space(c.code); };
  return [&text, &of](const Character& c) {
    const auto character = std::string_view(text.bytes).substr(c.begin, c.end - c.begin);
    return of->find(character) != of->npos;  // never within a character, since it is UTF-8
  };
}

// The first `most` words, and one more if there are more.
std::vector<ByteRange> words(const Text& text, size_t most) {
  std::vector<ByteRange> words;
  bool inside = false;
  for (const Character& c : Characters(text.bytes)) {
    const bool space = is_space(c.code);
    if (!space && !inside) {
      if (words.size() > most) break;
      words.push_back({c.begin, c.end});
    }
    if (!space) words.back().end = c.end;
    inside = !space;
  }
  return words;
}

std::vector<ByteRange> occurrences(std::string_view text, std::string_view of, int64_t most) {
  std::vector<ByteRange> found;
  for (size_t at = find_text(text, of); at != text.npos && std::cmp_less(found.size(), most);
       at = find_text(text, of, at + of.size())) {
    found.push_back({at, at + of.size()});
  }
  return found;
}

// The parts of a text between the ranges.
std::vector<Text> between(const Text& text, const std::vector<ByteRange>& spans) {
  std::vector<Text> parts;
  size_t begin = 0;
  for (const ByteRange& span : spans) {
    parts.push_back(text.part(begin, span.begin));
    begin = span.end;
  }
  parts.push_back(text.part(begin, text.bytes.size()));
  return parts;
}

// Splits at white space. If the limit is reached, the rest is one part with its inner spaces.
std::vector<Text> split_words(const Text& text, int64_t most, bool from_right) {
  const size_t limit = most < 0 ? SIZE_MAX : static_cast<size_t>(most);
  const std::vector<ByteRange> all = words(text, from_right ? SIZE_MAX : limit);
  std::vector<Text> parts;
  if (all.size() <= limit) {
    for (const ByteRange& word : all) parts.push_back(text.part(word.begin, word.end));
  } else if (from_right) {
    const size_t first = all.size() - limit;
    const Text head = text.part(0, all[first - 1].end);
    parts.push_back(head);
    for (size_t i = first; i < all.size(); ++i)
      parts.push_back(text.part(all[i].begin, all[i].end));
    parts.front() = strip(head, Side::kRight);
  } else {
    for (size_t i = 0; i < limit; ++i) parts.push_back(text.part(all[i].begin, all[i].end));
    parts.push_back(text.part(all[limit].begin, text.bytes.size()));
  }
  return parts;
}

std::string_view html_entity(char c) {  // as markupsafe writes them
  switch (c) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '\'':
      return "&#39;";
    default:
      return "&#34;";
  }
}

bool ends_line(int32_t code) {  // str.splitlines
  return code == '\n' || code == '\r' || code == 0x0B || code == 0x0C ||
         (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 || code == 0x2029;
}

Text mapped(const Text& text, CaseMap map) {
  Text out;
  for (const Character& c : Characters(text.bytes)) append_mapped(text, c, map, &out);
  return out;
}

}  // namespace

std::vector<Origins::Run>::const_iterator Origins::run_of(size_t byte) const {
  return std::upper_bound(before_.begin(), before_.end(), byte,
                          [](size_t at, const Run& run) { return at < run.end; });
}

Origin Origins::at(size_t byte) const {
  const auto run = run_of(byte);
  return run == before_.end() ? last_ : run->origin;
}

void Origins::append(size_t bytes, Origin origin) {
  if (bytes == 0) return;
  if (origin != last_ && end_ > 0) before_.push_back({end_, last_});
  last_ = origin;
  end_ += bytes;
}

void Origins::append(const Origins& other, size_t begin, size_t end) {
  other.for_each(begin, end,
                 [&](size_t from, size_t to, Origin origin) { append(to - from, origin); });
}

Text Text::take(std::string text, Origin origin) {
  Text taken;
  taken.origins = Origins(text.size(), origin);
  taken.bytes = std::move(text);
  return taken;
}

void Text::append(const Text& other) {
  bytes += other.bytes;
  origins.append(other.origins, 0, other.origins.size());
}

void Text::append(std::string_view text, Origin origin) {
  bytes += text;
  origins.append(text.size(), origin);
}

Text Text::part(size_t begin, size_t end) const {
  Text out;
  out.bytes = bytes.substr(begin, end - begin);
  out.origins.append(origins, begin, begin + out.bytes.size());
  return out;
}

Character character_at(std::string_view utf8, size_t begin) {
  const auto first = static_cast<unsigned char>(utf8[begin]);
  if (first < 0x80) return {first, begin, begin + 1};
  utf8proc_int32_t code = 0;
  const auto size = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(utf8.data() + begin),
                                     static_cast<utf8proc_ssize_t>(utf8.size() - begin), &code);
  return size > 0 ? Character{code, begin, begin + static_cast<size_t>(size)}
                  : Character{0xFFFD, begin, begin + 1};
}

Character character_before(std::string_view utf8, size_t end) {
  return character_at(utf8, characters_before(utf8, end, 1));
}

size_t find_text(std::string_view text, std::string_view what, size_t from) {
  if (from > text.size()) return text.npos;
  const void* found = memmem(text.data() + from, text.size() - from, what.data(), what.size());
  return found == nullptr ? text.npos
                          : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

bool is_space(int32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 ||
         code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
         code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

Text strip(const Text& text, Side side, const std::optional<std::string>& of) {
  const auto taken = stripped(text, of);
  size_t begin = 0, end = text.bytes.size();
  while (side != Side::kRight && begin < end) {
    const Character first = character_at(text.bytes, begin);
    if (!taken(first)) break;
    begin = first.end;
  }
  while (side != Side::kLeft && begin < end) {
    const Character last = character_before(text.bytes, end);
    if (!taken(last)) break;
    end = last.begin;
  }
  return text.part(begin, end);
}

std::vector<Text> split(const Text& text, const std::optional<std::string>& separator,
                        int64_t most) {
  if (!separator) return split_words(text, most, false);
  return between(text, occurrences(text.bytes, *separator, most < 0 ? INT64_MAX : most));
}

std::vector<Text> rsplit(const Text& text, const std::optional<std::string>& separator,
                         int64_t most) {
  if (!separator) return split_words(text, most, true);
  std::vector<ByteRange> at;
  std::string_view rest = text.bytes;  // from the right, since occurrences may overlap
  while (most < 0 || at.size() < static_cast<size_t>(most)) {
    const size_t found = rest.rfind(*separator);
    if (found == rest.npos) break;
    at.push_back({found, found + separator->size()});
    rest = rest.substr(0, found);
  }
  std::reverse(at.begin(), at.end());
  return between(text, at);
}

std::vector<Text> splitlines(const Text& text, size_t most) {
  std::vector<Text> lines;
  size_t begin = 0;
  for (const Character& c : Characters(text.bytes)) {
    if (lines.size() >= most) break;
    if (!ends_line(c.code)) continue;
    const bool ends_crlf =
        c.code == '\n' && c.begin == begin && begin > 0 && text.bytes[begin - 1] == '\r';
    if (!ends_crlf) lines.push_back(text.part(begin, c.begin));
    begin = c.end;
  }
  if (begin < text.bytes.size()) lines.push_back(text.part(begin, text.bytes.size()));
  return lines;
}

Text replace(const Text& text, std::string_view from, const Text& to, int64_t most) {
  Text out;
  size_t done = 0, next = 0;  // in bytes: copied so far, and where the search continues
  for (int64_t i = 0; most < 0 || i < most; ++i) {
    const size_t at =
        next > text.bytes.size() ? text.bytes.npos : find_text(text.bytes, from, next);
    if (at == text.bytes.npos) break;
    out.append(text.part(done, at));
    out.append(to);
    done = next = at + from.size();
    // An empty text matches before every character and at the end.
    if (from.empty()) next = at < text.bytes.size() ? character_at(text.bytes, at).end : at + 1;
  }
  out.append(text.part(done, text.bytes.size()));
  return out;
}

Text escape_html(const Text& text) {
  Text out = text.markup ? text : Text();
  out.markup = true;
  for (size_t begin = 0; !text.markup && begin < text.bytes.size();) {
    const size_t end = std::min(text.bytes.find_first_of("&<>'\"", begin), text.bytes.size());
    out.append(text.part(begin, end));
    if (end < text.bytes.size()) out.append(html_entity(text.bytes[end]), text.origin(end));
    begin = end + 1;
  }
  return out;
}

Text upper(const Text& text) { return mapped(text, utf8proc_toupper); }
Text lower(const Text& text) { return mapped(text, utf8proc_tolower); }

Text title(const Text& text) {
  Text out;
  bool inside = false;
  for (const Character& c : Characters(text.bytes)) {
    append_mapped(text, c, inside ? utf8proc_tolower : utf8proc_totitle, &out);
    inside = is_cased(c.code);
  }
  return out;
}

Text capitalize(const Text& text) {
  Text out;
  for (const Character& c : Characters(text.bytes)) {
    append_mapped(text, c, c.begin > 0 ? utf8proc_tolower : utf8proc_totitle, &out);
  }
  return out;
}

Text title_filter(const Text& text) {
  Text out;
  bool inside = false;
  for (const Character& c : Characters(text.bytes)) {
    const bool border = is_space(c.code) || c.code == '-' || c.code == '(' || c.code == '{' ||
                        c.code == '[' || c.code == '<';
    append_mapped(text, c, inside ? utf8proc_tolower : utf8proc_toupper, &out);
    inside = !border;
  }
  return out;
}

Text indent(const Text& text, const Text& indention, bool first, bool blank) {
  Text with_end = text;
  with_end.append("\n", Origin::kTemplate);  // as in Jinja, since the last line may be empty
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
