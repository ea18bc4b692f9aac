#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/models/trie.h"
#include "server/text/tokenizers/tokenizer.h"
#include "server/text/utf8.h"

namespace recurve {

// A token that is found in the text as a whole, before the model (BPE, ...) processes the rest.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;      // a control token
  bool normalized = false;   // searched for in the normalized text, not in the raw text
  bool single_word = false;  // only if no word character is next to it
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // includes the white space after it
};

// Finds added tokens in a text: the leftmost, of several the longest, then the next after it. This
// is exactly AddedVocabulary::find_matches of Hugging Face's `tokenizers`; so white space included
// by rstrip may be found again as a separate token. Constant after construction. Time is O(bytes of
// the text x bytes of the longest token), which has at most kMaxBytes.
class AddedTokenFinder {
 public:
  static constexpr size_t kMaxBytes = 1024;

  // Adds a token that is found as `content`. Does nothing if there is one with this content
  // already.
  void add(const AddedToken& token, std::string_view content);
  bool empty() const { return tokens_.empty(); }

 private:
  friend class AddedTokenScanner;
  struct Match {
    const AddedToken* token = nullptr;
    size_t length = 0;
    bool open = false;  // with more text, a longer token may match
  };

  Match longest_at(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;
  Trie trie_;                 // contents; the numbers are indices in tokens_
  bool can_start_[256] = {};  // [byte]
  bool has_lstrip_ = false;
};

// Part of a text: an added token, or text (id < 0). Consecutive spans of text are parts of one
// text.
struct AddedSpan {
  std::string_view text;  // valid until the next call of push(); empty for a token
  int32_t id;
  bool trusted = false;  // of text: as passed to push()
};

// Finds the added tokens of one text that arrives in parts.
class AddedTokenScanner {
 public:
  // `finder` must outlive it.
  explicit AddedTokenScanner(const AddedTokenFinder& finder) : finder_(&finder) {}

  // Takes the next part, in whole characters; `last`: it ends the text. Returns the spans that no
  // later part can change, in order (see AddedTokenFinder: they may overlap). A control token is
  // found only if its whole name is trusted. Otherwise the name is text, in which no other token is
  // searched for, as with encode_special_tokens in Hugging Face's `tokenizers`.
  std::vector<AddedSpan> push(std::string_view utf8, bool trusted, bool last);
  // Bytes whose spans are not certain yet.
  size_t held() const { return text_.size() - std::min(at_, done_); }

 private:
  bool undecided(const AddedTokenFinder::Match& match) const;
  AddedTokenFinder::Match trusted_match(const AddedTokenFinder::Match& match, size_t* next) const;
  std::vector<ByteRange>::const_iterator trusted_from(size_t at) const;
  const ByteRange* trusted_at(size_t at) const;
  void add_token(const AddedTokenFinder::Match& match, std::vector<AddedSpan>& spans);
  void emit_text(size_t end, std::vector<AddedSpan>& spans);
  void drop_finished();

  const AddedTokenFinder* finder_;
  std::vector<ByteRange> trusted_;  // of text_
  std::string text_;                // from the last character that matches depend on
  size_t at_ = 0;                   // where the next token is searched for
  size_t done_ = 0;                 // the text before it has been returned
};

// An encoder whose only added tokens are control tokens: it finds them, and passes the text between
// them to add_text().
class ControlTokenEncoder : public TextEncoder {
 public:
  ControlTokenEncoder(const AddedTokenFinder& controls, SpecialTokens special,
                      const WorkLimits& limits);
  void push(std::string_view utf8, bool last, std::vector<int32_t>* ids) final;
  void set_special(SpecialTokens special, std::vector<int32_t>*) final;
  size_t held() const override { return scanner_ ? scanner_->held() : 0; }

 protected:
  // `last`: `part` ends a text.
  virtual void add_text(std::string_view part, bool last, std::vector<int32_t>* ids) = 0;

  const WorkLimits limits_;

 private:
  const AddedTokenFinder& controls_;
  std::optional<AddedTokenScanner> scanner_;  // once a part has been trusted
  bool trusted_ = false;
};

}  // namespace recurve
