#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

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

// Part of a text: an added token, or (id < 0) the text between two of them. [begin, end) in bytes.
struct AddedSpan {
  size_t begin;
  size_t end;
  int32_t id;
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

  // All of `text`, in order (see above: spans may overlap). With `skip_special`, control tokens are
  // left in the text (but what they cover is not searched for others, as in Hugging Face's
  // encode_special_tokens).
  std::vector<AddedSpan> find(std::string_view text, bool skip_special) const;

 private:
  struct Match {
    const AddedToken* token = nullptr;
    size_t length = 0;
  };

  Match longest_at(std::string_view text, size_t at) const;
  int32_t child(int32_t node, char byte) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<uint64_t, int32_t> children_;  // node << 8 | byte -> node
  std::vector<int32_t> token_of_ = {-1};            // [node]: index in tokens_, -1: none
  bool can_start_[256] = {};                        // [byte]
};

}  // namespace recurve
