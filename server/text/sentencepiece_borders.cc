#include "server/text/sentencepiece_borders.h"

#include <utf8proc.h>

#include <string>

#include "server/text/utf8.h"

namespace recurve {
namespace {

constexpr char32_t kSpaceMark = 0x2581;

uint64_t pair_of(char32_t left, char32_t right) { return uint64_t{left} << 32 | right; }

// Letters, digits and ASCII signs: what no normalisation joins to a space.
bool is_plain(char32_t c) {
  if (c < 0x80) return c > 0x20 && c < 0x7F;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_ND:
      return true;
    default:
      return false;
  }
}

size_t character_at(std::string_view utf8, size_t at) {
  size_t end = at + 1;
  while (end < utf8.size() && is_continuation(utf8[end])) ++end;
  return end - at;
}

}  // namespace

SentencePieceBorders::SentencePieceBorders(const SentencePieceModel& model, bool has_bytes)
    : has_bytes_(has_bytes), rewrites_(model.rewrites_characters) {
  for (const SentencePieceModel::Piece& entry : model.pieces) {
    if (!is_valid_utf8(entry.name)) continue;  // which is no text's
    const std::u32string piece = to_utf32(entry.name);
    if (piece.size() == 1) singles_.insert(piece[0]);
    for (size_t i = 1; i < piece.size(); ++i) {
      neighbours_.insert(pair_of(piece[i - 1], piece[i]));
      if (piece[i] == kSpaceMark && piece[i - 1] != kSpaceMark) spaces_begin_words_ = false;
    }
  }
}

size_t SentencePieceBorders::find(std::string_view utf8, size_t from) const {
  size_t at = from;
  while (at < utf8.size() && is_continuation(utf8[at])) ++at;
  size_t before = at - 1;
  while (before > 0 && is_continuation(utf8[before])) --before;
  while (at < utf8.size()) {
    const size_t behind = at + character_at(utf8, at);
    if (behind >= utf8.size()) break;
    const size_t end = behind + character_at(utf8, behind);
    const std::u32string around = to_utf32(utf8.substr(before, end - before));
    if (is_border(around[0], around[1], around[2])) return at;
    before = at;
    at = behind;
  }
  return utf8.npos;
}

bool SentencePieceBorders::is_border(char32_t before, char32_t here, char32_t behind) const {
  if (rewrites_) {
    return here == ' ' && spaces_begin_words_ && known(kSpaceMark) && is_plain(before) &&
           is_plain(behind);
  }
  if (before == ' ' || before == kSpaceMark || here == kSpaceMark) return false;
  const char32_t mark = here == ' ' ? kSpaceMark : here;
  return (known(before) || known(mark)) && !neighbours_.contains(pair_of(before, mark));
}

}  // namespace recurve
