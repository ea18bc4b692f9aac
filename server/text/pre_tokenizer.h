#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/text/regex.h"

namespace recurve {

// What becomes of the matches of a pattern that cuts a text.
enum class SplitBehavior {
  kIsolated,            // each match is a piece
  kRemoved,             // matches vanish
  kMergedWithPrevious,  // each match ends the piece before it
  kMergedWithNext,      // each match begins the piece after it
  kContiguous,          // matches that touch are one piece
};

// A text cut into pieces: [begin, end) in bytes of `text`, in order, none empty.
struct Pieces {
  struct Range {
    size_t begin;
    size_t end;
  };
  std::string text;
  std::vector<Range> ranges;

  std::string_view piece(Range r) const {
    return std::string_view(text).substr(r.begin, r.end - r.begin);
  }
};

// Cuts a text into the words that BPE then works on: a chain of the pre-tokenizers of Hugging
// Face's `tokenizers` (0.23), each run on every piece that the one before it left. Constant after
// construction.
class PreTokenizer {
 public:
  struct Split {
    Regex pattern;
    SplitBehavior behavior;
    bool invert;
  };
  // From here on the text is in the byte-level alphabet (byte_level.h): steps after it see that.
  struct ByteLevel {
    bool add_prefix_space;
    bool use_regex;  // cut with GPT-2's pattern first
  };
  using Step = std::variant<Split, ByteLevel>;

  void add(Step step) { steps_.push_back(std::move(step)); }
  const std::vector<Step>& steps() const { return steps_; }

  // The words of one stretch of text without added tokens (valid UTF-8).
  Pieces run(std::string_view text) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace recurve
