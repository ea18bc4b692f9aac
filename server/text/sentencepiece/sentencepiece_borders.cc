#include "server/text/sentencepiece/sentencepiece_borders.h"

#include "server/text/characters.h"
#include "server/text/utf8.h"

namespace recurve {
namespace {

uint64_t pair_of(char32_t left, char32_t right) { return uint64_t{left} << 32 | right; }

}  // namespace

SentencePieceBorders::SentencePieceBorders(const SentencePieceModel& model, bool has_bytes)
    : has_bytes_(has_bytes) {
  for (const SentencePieceModel::Piece& entry : model.pieces) {
    if (!is_valid_utf8(entry.name)) continue;  // which is no text's
    const std::u32string piece = to_utf32(entry.name);
    if (piece.size() == 1) singles_.insert(piece[0]);
    for (size_t i = 1; i < piece.size(); ++i) {
      neighbours_.insert(pair_of(piece[i - 1], piece[i]));
    }
  }
}

size_t SentencePieceBorders::find(std::string_view utf8, size_t from) const {
  size_t at = from;
  while (at < utf8.size() && is_continuation(utf8[at])) ++at;
  if (at >= utf8.size()) return utf8.npos;
  size_t begin = at - 1;
  while (begin > 0 && is_continuation(utf8[begin])) --begin;
  char32_t before = first_code_point(utf8.substr(begin)).code_point;
  while (at < utf8.size()) {
    const Character here = first_code_point(utf8.substr(at));
    if (is_border(before, here.code_point)) return at;
    before = here.code_point;
    at += here.bytes;
  }
  return utf8.npos;
}

bool SentencePieceBorders::is_border(char32_t before, char32_t here) const {
  return (known(before) || known(here)) && !neighbours_.contains(pair_of(before, here));
}

}  // namespace recurve
