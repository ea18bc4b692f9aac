#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/byte_range.h"
#include "server/text/models/trie.h"

namespace recurve {

// A token that is found in the text as a whole, before BPE.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;      // a control token
  bool normalized = false;   // looked for in the normalised text, else in the text as written
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
};

// Finds added tokens: leftmost first, of those the longest, then goes on behind it; as
// AddedVocabulary::find_matches of Hugging Face's `tokenizers`, to the letter: white space taken by
// rstrip may be found again as a token of its own. Constant after construction.
// Time is O(length of text x length of the longest token), which is at most kMaxBytes.
class AddedTokenFinder {
 public:
  static constexpr size_t kMaxBytes = 1024;

  // `content` is what to look for. A content that is there already keeps its first token.
  void add(const AddedToken& token, std::string_view content);
  bool empty() const { return tokens_.empty(); }

 private:
  friend class AddedTokenScanner;
  struct Match {
    const AddedToken* token = nullptr;
    size_t length = 0;
    bool open = false;  // more text might make it longer
  };

  Match longest_at(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;
  Trie trie_;                 // of contents; the numbers are indices in tokens_
  bool can_start_[256] = {};  // [byte]
  bool has_lstrip_ = false;
};

// Part of a text: an added token, or (id < 0) text before, between or behind them. Several of the
// latter in a row are parts of one stretch.
struct AddedSpan {
  std::string_view text;  // valid until the scanner is used again; empty for a token
  int32_t id;
  bool trusted = false;  // of a text: as it was pushed
};

// Cuts the added tokens out of one text, which comes in parts.
class AddedTokenScanner {
 public:
  // `finder` outlives it.
  explicit AddedTokenScanner(const AddedTokenFinder& finder) : finder_(&finder) {}

  // The next part, in whole characters; `last`: the text ends with it. Control tokens are found
  // where all of their name is trusted, and left in the text elsewhere (but what they cover there
  // is not searched for others, as in Hugging Face's encode_special_tokens). What has become
  // certain, in order (see AddedTokenFinder: spans may overlap).
  std::vector<AddedSpan> push(std::string_view utf8, bool trusted, bool last);
  // Bytes that wait for what follows them.
  size_t held() const { return text_.size() - std::min(at_, done_); }

 private:
  bool undecided(const AddedTokenFinder::Match& match) const;
  AddedTokenFinder::Match without_strangers(const AddedTokenFinder::Match& match,
                                            size_t* next) const;
  const ByteRange* trusted_around(size_t at) const;
  void cut(const AddedTokenFinder::Match& match, std::vector<AddedSpan>& spans);
  void emit_text(size_t end, std::vector<AddedSpan>& spans);
  void forget();

  const AddedTokenFinder* finder_;
  std::vector<ByteRange> trusted_;  // of text_
  std::string text_;                // from the last character on that is still looked at
  size_t at_ = 0;                   // where the next token is looked for
  size_t done_ = 0;                 // everything before has been given out
};

}  // namespace recurve
