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

// A Unigram model: of all ways to cut a word into pieces the one with the highest sum of scores
// (Viterbi). Ties, and what rounding makes of them, are decided as Hugging Face's `tokenizers` does
// it, which sums in double precision, or as SentencePiece does, in single. Characters that no piece
// holds become their bytes' tokens, or one unknown id for neighbours.
class UnigramModel final : public WordModel {
 public:
  struct Piece {
    std::string text;
    double score;
    bool control;  // not found in texts
  };
  enum class Precision { kSingle, kDouble };
  struct Unknown {
    int32_t id;
    double score;                       // of a character that is no piece
    std::array<int32_t, 256> byte_ids;  // [byte], what such a one falls back to; -1: none
  };
  static constexpr double kUnknownPenalty = 10;  // below the least score, here as there
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
  bool has_all_bytes_;  // unknown.byte_ids
  Precision precision_;
  size_t longest_ = 4;  // bytes of a piece, or of a character
};

}  // namespace recurve
