#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/text/models/bpe_model.h"
#include "server/text/models/trie.h"
#include "server/text/models/word_model.h"

namespace recurve {

// A Unigram model: of all segmentations of a word into pieces, the one with the highest sum of
// scores (Viterbi). Ties are decided as in Hugging Face's `tokenizers`, which adds scores in double
// precision, or as in SentencePiece, which adds them in single precision. Characters that are in no
// piece become the tokens of their bytes, or one unknown id for adjacent ones.
class UnigramModel final : public WordModel {
 public:
  struct Piece {
    std::string text;
    double score;
    bool control;  // never matches text
  };
  enum class Precision { kSingle, kDouble };
  struct Unknown {
    int32_t id;
    double score;                       // of a character that is not a piece
    std::array<int32_t, 256> byte_ids;  // [byte], for byte fallback; -1: none
  };
  static constexpr double kUnknownPenalty = 10;  // below the least score, in both libraries
  UnigramModel(const std::vector<Piece>& pieces, const Unknown& unknown, Precision precision);

  std::unique_ptr<WordEncoder> encoder() const override;
  std::string kind() const override { return "Unigram"; }
  std::string details() const override;

 private:
  class Encoder;

  Trie trie_;                      // the numbers are ids
  std::vector<double> scores_;     // [id]
  std::vector<uint32_t> lengths_;  // [id], bytes
  Unknown unknown_;
  bool has_all_bytes_;  // in unknown.byte_ids
  Precision precision_;
  size_t longest_ = 4;  // bytes of a piece, at least those of a character
};

}  // namespace recurve
