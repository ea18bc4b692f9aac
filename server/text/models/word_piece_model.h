#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "server/text/models/trie.h"
#include "server/text/models/word_model.h"

namespace recurve {

// The WordPiece model of Hugging Face's `tokenizers`: the longest token at the beginning of a word,
// then repeatedly the longest at the beginning of the rest, of those whose name begins with the
// continuing prefix. A word without such tokens, or that is too long, becomes one unknown id.
class WordPieceModel final : public WordModel {
 public:
  struct Parts {
    std::unordered_map<std::string, int32_t> vocabulary;
    int32_t unknown;
    std::string continuing_prefix;  // usually "##"
    size_t most_characters;         // of a word
  };
  explicit WordPieceModel(const Parts& parts);

  std::unique_ptr<WordEncoder> encoder() const override;
  std::string kind() const override { return "WordPiece"; }
  std::string details() const override;

 private:
  class Encoder;

  Trie trie_;  // the numbers are ids
  int32_t unknown_;
  int32_t continuing_;  // the node of the prefix, or Trie::kNone
  std::string prefix_;
  size_t most_characters_;
};

}  // namespace recurve
