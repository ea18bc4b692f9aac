#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/bpe_model.h"
#include "server/text/trie.h"
#include "server/text/word_model.h"

namespace recurve {

// The Unigram model of Hugging Face's `tokenizers`: of all ways to cut a word into pieces the one
// with the highest sum of scores (Viterbi), in double precision and with ties decided as there.
// Characters that no piece holds become their bytes' tokens, or one unknown id for neighbours.
class UnigramModel final : public WordModel {
 public:
  struct Piece {
    std::string text;
    double score;
    bool control;  // not found in texts
  };
  // `unknown` is the unknown piece's id; `byte_ids`: [byte], what unknown characters fall back to,
  // -1: none.
  UnigramModel(const std::vector<Piece>& pieces, int32_t unknown,
               const std::array<int32_t, 256>& byte_ids);

  std::unique_ptr<WordEncoder> encoder() const override;
  std::string kind() const override { return "Unigram"; }
  std::string details() const override;

 private:
  class Encoder;

  Trie trie_;                   // the numbers are ids
  std::vector<double> scores_;  // [id]
  double unknown_score_ = 0;
  int32_t unknown_;
  std::array<int32_t, 256> byte_ids_;
  size_t longest_ = 4;  // bytes of a piece, or of a character
};

}  // namespace recurve
