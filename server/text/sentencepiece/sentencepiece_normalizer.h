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

// What a SentencePiece model does to a text before it is cut into pieces: characters are rewritten,
// the longest key of its map first, what a user has defined stays as it is, spaces become marks,
// are collapsed and dropped at the ends of the text, and one is put in front. Constant after
// construction.
// Source: google/sentencepiece src/normalizer.cc, Normalizer::Normalize (0.1.97).
class SentencePieceNormalizer {
 public:
  // Throws std::runtime_error if the model's map is broken.
  explicit SentencePieceNormalizer(const SentencePieceModel& model);

  // One text, which comes in parts.
  class Text {
   public:
    // The normalizer outlives it. A text that is kContinued keeps the spaces in front, of which
    // there is one where they are collapsed, and gets none.
    Text(const SentencePieceNormalizer& normalizer, TextPosition position);

    // Appends what nothing that follows can change any more. `utf8`: whole characters; `last`: the
    // text ends with them, and nothing may come after.
    void push(std::string_view utf8, bool last, std::string& out);
    // Bytes that wait for what follows them.
    size_t held() const { return text_.size() + marks_held_; }

   private:
    void begin(std::string& out);
    void add(std::string_view written, std::string& out);
    void add_mark(std::string& out);

    const SentencePieceNormalizer* normalizer_;
    bool begun_;
    bool space_before_;      // spaces are dropped here
    size_t marks_held_ = 0;  // that may be the last
    std::string text_;       // not rewritten yet
  };

 private:
  // The first of a text that is rewritten by itself: so many bytes of it, and what is written
  // there.
  struct Prefix {
    size_t bytes;
    std::string_view written;
  };
  // Nothing if it depends on what follows; `last`: nothing does.
  std::optional<Prefix> first_of(std::string_view utf8, bool last) const;
  std::optional<size_t> defined_bytes(std::string_view utf8, bool last) const;

  std::optional<CharsMap> map_;
  Trie defined_;  // by a user
  bool defines_ = false;
  const bool adds_prefix_;
  const bool collapses_;
  const std::string_view mark_;  // what a space becomes
};

}  // namespace recurve
