#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "server/text/work_limits.h"

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
// rewritten, or refused where it cannot be (oniguruma.h). Constant after construction: any thread
// may search.
class Regex {
 public:
  // Throws UnsupportedTokenizer if the pattern cannot be run with the meaning it has in Oniguruma.
  explicit Regex(std::string_view oniguruma_pattern);

  // How far the search of a text that comes in parts has come.
  struct Search {
    size_t done = 0;       // everything before is in spans
    size_t from = 0;       // where the next match is looked for
    bool matched = false;  // a match ends at `done`
    size_t reach = 0;      // bytes behind `from` that the next match is known to reach
  };
  using Take = std::function<void(const Span&)>;
  // Gives `take` all of a text (valid UTF-8) in order: the matches, left to right, not overlapping,
  // and what lies between them. If `invert`, is_match is the other way round. Throws TextRefused if
  // one match takes more steps of backtracking, or memory for them, than PCRE2 is allowed here. Of
  // the text `text` is there so far, all of it if `last`: `take` gets what holds whatever follows.
  // `text` may leave out what lies more than lookbehind() characters before search->done and
  // search->from, whose indices move with it. Looks at the limits every few milliseconds, within a
  // match as well, and throws WorkUnwanted.
  void find_on(std::string_view text, bool last, bool invert, const WorkLimits& limits,
               Search* search, const Take& take) const;
  // Characters before a match that the pattern looks at; at least one, which tells a place from the
  // beginning of the text.
  size_t lookbehind() const;

  // True if the whole of `text` is one match.
  bool matches_all(std::string_view text) const;

 private:
  using Code = std::shared_ptr<const pcre2_real_code_8>;
  std::string pattern_;  // as it was given
  Code code_;
  Code interruptible_;  // the same, for matches of megabytes; slower where they are short
};

}  // namespace recurve
