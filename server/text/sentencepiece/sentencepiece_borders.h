#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_set>

#include "server/text/sentencepiece/sentencepiece_model.h"

namespace recurve {

// Where a normalised text can be cut so that a SentencePiece model gives both parts the ids that it
// gives them in the whole, whatever else the text holds.
//
// Segmentations, BPE's or unigram's, put nothing together but pieces, so where no piece holds two
// characters side by side there is always a border between them. One more thing reaches across it:
// neighbours that are unknown become a single <unk> (unless there are byte pieces).
class SentencePieceBorders {
 public:
  // `has_bytes`: unknown characters become byte pieces.
  SentencePieceBorders(const SentencePieceModel& model, bool has_bytes);

  // The first border of `utf8` at `from`, which is not 0, or behind it; utf8.npos if there is none.
  // A border needs the character behind it.
  size_t find(std::string_view utf8, size_t from) const;

 private:
  bool is_border(char32_t before, char32_t here) const;
  bool known(char32_t c) const { return has_bytes_ || singles_.contains(c); }

  const bool has_bytes_;
  std::unordered_set<char32_t> singles_;     // pieces of one character
  std::unordered_set<uint64_t> neighbours_;  // within a piece: left << 32 | right
};

}  // namespace recurve
