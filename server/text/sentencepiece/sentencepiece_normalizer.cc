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
    defines_ = true;
  }
}

// Bytes of the longest piece of a user's that the text begins with, 0 if there is none.
std::optional<size_t> SentencePieceNormalizer::defined_bytes(std::string_view utf8,
                                                             bool last) const {
  if (!defines_) return 0;
  size_t longest = 0;
  int32_t node = Trie::kRoot;
  for (size_t i = 0; i < utf8.size(); ++i) {
    node = defined_.next(node, utf8[i]);
    if (node == Trie::kNone) return longest;
    if (defined_.number(node) != Trie::kNone) longest = i + 1;
  }
  return last ? std::optional(longest) : std::nullopt;
}

std::optional<SentencePieceNormalizer::Prefix> SentencePieceNormalizer::first_of(
    std::string_view utf8, bool last) const {
  const std::optional<size_t> defined = defined_bytes(utf8, last);
  if (!defined) return {};
  if (*defined > 0) return Prefix{*defined, utf8.substr(0, *defined)};
  if (map_) {
    const CharsMap::Longest key = map_->find_longest(utf8);
    if (key.may_go_on && !last) return {};
    if (key.bytes > 0) return Prefix{key.bytes, key.written};
  }
  const size_t bytes = first_code_point(utf8).bytes;
  return Prefix{bytes, utf8.substr(0, bytes)};
}

SentencePieceNormalizer::Text::Text(const SentencePieceNormalizer& normalizer,
                                    TextPosition position)
    : normalizer_(&normalizer),
      begun_(position == TextPosition::kContinued),
      space_before_(!begun_ && normalizer.collapses_) {}

void SentencePieceNormalizer::Text::push(std::string_view utf8, bool last, std::string& out) {
  text_.append(utf8);
  std::string_view rest = text_;
  while (!rest.empty()) {
    const std::optional<Prefix> prefix = normalizer_->first_of(rest, last);
    if (!prefix) break;
    add(prefix->written, out);
    rest.remove_prefix(prefix->bytes);
  }
  text_.erase(0, text_.size() - rest.size());
}

// What is written for the next characters of the text.
void SentencePieceNormalizer::Text::add(std::string_view written, std::string& out) {
  if (!begun_ && normalizer_->collapses_ && written == " ") return;
  if (!begun_) begin(out);
  while (space_before_ && written.starts_with(' ')) written.remove_prefix(1);
  if (!written.empty()) space_before_ = normalizer_->collapses_ && written.ends_with(' ');
  while (!written.empty()) {
    const std::string_view character = written.substr(0, first_code_point(written).bytes);
    if (character == " " || character == normalizer_->mark_) {
      add_mark(out);
    } else {
      for (; marks_held_ > 0; --marks_held_) out += normalizer_->mark_;
      out += character;
    }
    written.remove_prefix(character.size());
  }
}

void SentencePieceNormalizer::Text::begin(std::string& out) {
  begun_ = true;
  if (normalizer_->adds_prefix_) add_mark(out);
}

// Marks at the end of a text are dropped where spaces are collapsed, also such as were no spaces.
void SentencePieceNormalizer::Text::add_mark(std::string& out) {
  if (normalizer_->collapses_) {
    ++marks_held_;
  } else {
    out += normalizer_->mark_;
  }
}

}  // namespace recurve
