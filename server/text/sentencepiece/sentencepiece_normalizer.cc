#include "server/text/sentencepiece/sentencepiece_normalizer.h"

#include "server/text/characters.h"

namespace recurve {

SentencePieceNormalizer::SentencePieceNormalizer(const SentencePieceModel& model)
    : adds_prefix_(model.add_dummy_prefix),
      collapses_(model.remove_extra_whitespaces),
      mark_(model.marks_spaces ? "\xE2\x96\x81" : " ") {
  if (!model.charsmap.empty()) map_ = CharsMap::from_bytes(model.charsmap);
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    if (piece.type != PieceType::kUserDefined || piece.name.empty()) continue;
    defined_.add(piece.name, 0);
  }
}

std::optional<SentencePieceNormalizer::Prefix> SentencePieceNormalizer::first_prefix(
    std::string_view utf8, bool last) const {
  const Trie::Match defined = defined_.longest(utf8);
  if (defined.open && !last) return {};
  if (defined.bytes > 0) return Prefix{defined.bytes, utf8.substr(0, defined.bytes)};
  if (map_) {
    const CharsMap::Longest key = map_->find_longest(utf8);
    if (key.open && !last) return {};
    if (key.bytes > 0) return Prefix{key.bytes, key.replacement};
  }
  const size_t bytes = first_code_point(utf8).bytes;
  return Prefix{bytes, utf8.substr(0, bytes)};
}

SentencePieceNormalizer::Text::Text(const SentencePieceNormalizer& normalizer,
                                    TextPosition position)
    : normalizer_(&normalizer),
      begun_(position == TextPosition::kContinued),
      drops_spaces_(!begun_ && normalizer.collapses_) {}

void SentencePieceNormalizer::Text::push(std::string_view utf8, bool last, std::string& out) {
  text_.append(utf8);
  std::string_view rest = text_;
  while (!rest.empty()) {
    const std::optional<Prefix> prefix = normalizer_->first_prefix(rest, last);
    if (!prefix) break;
    add(prefix->replacement, out);
    rest.remove_prefix(prefix->bytes);
  }
  text_.erase(0, text_.size() - rest.size());
}

// Adds the replacement of the next characters of the input.
void SentencePieceNormalizer::Text::add(std::string_view text, std::string& out) {
  if (!begun_ && normalizer_->collapses_ && text == " ") return;
  if (!begun_) begin(out);
  while (drops_spaces_ && text.starts_with(' ')) text.remove_prefix(1);
  if (!text.empty()) drops_spaces_ = normalizer_->collapses_ && text.ends_with(' ');
  while (!text.empty()) {
    const std::string_view character = text.substr(0, first_code_point(text).bytes);
    if (character == " " || character == normalizer_->mark_) {
      add_mark(out);
    } else {
      for (; held_marks_ > 0; --held_marks_) out += normalizer_->mark_;
      out += character;
    }
    text.remove_prefix(character.size());
  }
}

void SentencePieceNormalizer::Text::begin(std::string& out) {
  begun_ = true;
  if (normalizer_->adds_prefix_) add_mark(out);
}

// If spaces are collapsed, marks at the end of a text are dropped, also those that were in the
// input.
void SentencePieceNormalizer::Text::add_mark(std::string& out) {
  if (normalizer_->collapses_) {
    ++held_marks_;
  } else {
    out += normalizer_->mark_;
  }
}

}  // namespace recurve
