#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_set>

#include "server/text/models/unigram_model.h"
#include "server/text/models/word_model.h"
#include "server/text/sentencepiece/sentencepiece_model.h"

namespace recurve {

// The boundaries at which normalized text can be split without a change of its ids: those between
// two adjacent characters that are adjacent in no piece, since BPE and Unigram only join characters
// to pieces. Two unknown characters are the exception: without byte fallback they become one <unk>.
class SentencePieceBoundaries {
 public:
  // `has_bytes`: the model has byte fallback.
  SentencePieceBoundaries(const SentencePieceModel& model, bool has_bytes);

  // The first boundary in `utf8` at or after `from` > 0, utf8.npos if there is none. There is a
  // character before and after it.
  size_t find(std::string_view utf8, size_t from) const;

 private:
  bool is_boundary(char32_t before, char32_t here) const;
  bool known(char32_t c) const { return has_bytes_ || singles_.contains(c); }

  const bool has_bytes_;
  std::unordered_set<char32_t> singles_;   // pieces of one character
  std::unordered_set<uint64_t> adjacent_;  // in a piece: left << 32 | right
};

// The segmentation of normalized text by a checked model of type BPE (as in Llama 2 and Mistral).
// Throws std::runtime_error if its merges do not follow from its pieces: if a piece is UNUSED,
// which would be split again, or has a character that is not a piece.
std::unique_ptr<const WordModel> sentencepiece_bpe(const SentencePieceModel& model);

// The segmentation of normalized text by a checked model of type Unigram.
std::unique_ptr<const UnigramModel> sentencepiece_unigram(const SentencePieceModel& model);

}  // namespace recurve
