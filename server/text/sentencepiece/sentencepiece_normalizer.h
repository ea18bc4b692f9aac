#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "server/text/models/trie.h"
#include "server/text/normalizers/charsmap.h"
#include "server/text/sentencepiece/sentencepiece_model.h"
#include "server/text/tokenizers/tokenizer.h"

namespace recurve {

// The normalization of a SentencePiece model: replaces the longest keys of its map except in
// user-defined pieces, replaces spaces by marks, and depending on the model collapses spaces,
// removes them at the ends of the text, and prepends one. Constant after construction. Source:
// google/sentencepiece src/normalizer.cc, Normalizer::Normalize (0.1.97).
class SentencePieceNormalizer {
 public:
  // Throws std::runtime_error if the model's map is invalid.
  explicit SentencePieceNormalizer(const SentencePieceModel& model);

  // One text that arrives in parts.
  class Text {
   public:
    // The normalizer must outlive it. If a text is kContinued, nothing is prepended, and spaces at
    // its beginning are collapsed but not removed.
    Text(const SentencePieceNormalizer& normalizer, TextPosition position);

    // Takes the next part, in whole characters; `last`: it is the last. Appends the output that no
    // later part can change.
    void push(std::string_view utf8, bool last, std::string& out);
    // Bytes whose output is not certain yet.
    size_t held() const { return text_.size() + held_marks_; }

   private:
    void begin(std::string& out);
    void add(std::string_view text, std::string& out);
    void add_mark(std::string& out);

    const SentencePieceNormalizer* normalizer_;
    bool begun_;
    bool drops_spaces_;      // at the current position
    size_t held_marks_ = 0;  // marks that may be at the end
    std::string text_;       // input that is not processed yet
  };

 private:
  // The first bytes of a text, and their replacement.
  struct Prefix {
    size_t bytes;
    std::string_view replacement;
  };
  // Empty if it depends on later text, which `last` excludes.
  std::optional<Prefix> first_prefix(std::string_view utf8, bool last) const;

  std::optional<CharsMap> map_;
  Trie defined_;  // user-defined pieces
  const bool adds_prefix_;
  const bool collapses_;
  const std::string_view mark_;  // the replacement of a space
};

}  // namespace recurve
