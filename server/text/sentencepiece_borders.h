#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_set>

#include "server/text/sentencepiece_model.h"

namespace recurve {

// Where a text can be cut so that a SentencePiece model gives both parts the ids that it gives
// them in the whole, whatever else the text holds.
//
// Segmentations, BPE's or unigram's, put nothing together but pieces, so where no piece holds two
// characters side by side there is always a border between them. Two more things reach across one:
// neighbours that are unknown become a single <unk> (unless there are byte pieces), and
// normalisation rewrites sequences of characters; where the model does that, only a space between
// two letters, digits or ASCII signs is taken for a border, and only if no piece holds a space
// behind another character.
class SentencePieceBorders {
 public:
  // `has_bytes`: unknown characters become byte pieces.
  SentencePieceBorders(const SentencePieceModel& model, bool has_bytes);

  // The first border of `utf8` at `from`, which is not 0, or behind it; utf8.npos if there is none.
  // A border needs the character behind it, and the one behind that.
  size_t find(std::string_view utf8, size_t from) const;

 private:
  bool is_border(char32_t before, char32_t here, char32_t behind) const;
  bool known(char32_t c) const { return has_bytes_ || singles_.contains(c); }

  const bool has_bytes_;
  const bool rewrites_;
  bool spaces_begin_words_ = true;
  std::unordered_set<char32_t> singles_;     // pieces of one character
  std::unordered_set<uint64_t> neighbours_;  // within a piece: left << 32 | right
};

}  // namespace recurve
