#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct pcre2_real_code_8;

namespace recurve {

// A part of a text that a pattern matched, or one between two matches; [begin, end) in bytes.
struct Span {
  size_t begin;
  size_t end;
  bool is_match;
};

// A regular expression as tokenizer.json files write it: Oniguruma's Ruby syntax on Unicode
// characters, run by PCRE2 (JIT where the machine has it). What the two engines read differently is
// rewritten, or refused where it cannot be (oniguruma.h). Constant after construction: find() may
// be called from any thread.
class Regex {
 public:
  // Throws UnsupportedTokenizer if the pattern cannot be run with the meaning it has in Oniguruma.
  explicit Regex(std::string_view oniguruma_pattern);

  // All of `text` (valid UTF-8) in order: the matches, left to right, not overlapping, and what
  // lies between them. If `invert`, is_match is the other way round. If PCRE2 gives up (its match
  // or heap limit), the rest of the text is one span with is_match = false: nothing is lost.
  std::vector<Span> find(std::string_view text, bool invert = false) const;

  // True if the whole of `text` is one match.
  bool matches_all(std::string_view text) const;

 private:
  std::shared_ptr<const pcre2_real_code_8> code_;
};

}  // namespace recurve
