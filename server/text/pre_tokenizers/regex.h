#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "server/text/json/json_fields.h"
#include "server/text/work_limits.h"

struct pcre2_real_code_8;

namespace recurve {

// A match of a pattern in a text, or the text between two matches; [begin, end) in bytes.
struct Span {
  size_t begin;
  size_t end;
  bool is_match;
};

// A regular expression of a tokenizer.json: Oniguruma's Ruby syntax on Unicode characters, run by
// PCRE2 (with JIT if available), see oniguruma_to_pcre2(). Constant after construction: any thread
// may search.
class Regex {
 public:
  // Throws UnsupportedTokenizer if PCRE2 cannot run the pattern with the meaning of Oniguruma.
  explicit Regex(std::string_view oniguruma_pattern);

  // The progress of a search in a text that arrives in parts.
  struct Search {
    size_t done = 0;       // the text before it is in spans
    size_t from = 0;       // where the next match is searched for
    bool matched = false;  // a match ends at `done`
    size_t reach = 0;      // bytes after `from` that the next match is known to cover
  };
  using Sink = std::function<void(const Span&)>;
  // Divides a text (valid UTF-8) into matches, left to right and not overlapping, and the text
  // between them, and calls `sink` for each in order. If `invert`, is_match is inverted. `text` is
  // the text so far, or all of it if `last`; `sink` gets the spans that later text cannot change.
  // The caller may remove text more than lookbehind() characters before search->done and
  // search->from, and must then move these indices. Checks the limits every few milliseconds, also
  // within a match. Throws WorkUnwanted, and TextRefused if one match exceeds the limits of PCRE2
  // on backtracking or memory.
  void find_on(std::string_view text, bool last, bool invert, const WorkLimits& limits,
               Search* search, const Sink& sink) const;

  // Characters before a match that the pattern depends on; at least one, to tell a position from
  // the beginning of the text.
  size_t lookbehind() const;

  // Whether the whole text is one match.
  bool matches_all(std::string_view text) const;

 private:
  using Code = std::shared_ptr<const pcre2_real_code_8>;
  std::string pattern_;  // in Oniguruma's syntax
  Code code_;
  Code interruptible_;  // the same for matches of megabytes; slower for short ones
};

// Translates a pattern from Oniguruma's Ruby syntax, which Hugging Face tokenizers use, to PCRE2
// with the options UTF | UCP | MULTILINE.
//
// Rewritten: \s \S (PCRE2 adds U+180E), \w \W (PCRE2 has letters, numbers and "_" only), \uHHHH,
// \p{Script} (PCRE2 matches script extensions). Refused, because the engines differ and no
// tokenizer needs them: nested and intersected character classes, \h \v \b \R \X \K, back
// references, named groups, inline flags other than (?i:...), {n,m}+, {,n}, verbs.
// Sources: Oniguruma doc/RE; pcre2pattern(3).
// Throws UnsupportedTokenizer, which names what is not supported.
std::string oniguruma_to_pcre2(std::string_view pattern);

// An equivalent pattern for texts of many megabytes: it calls out (pcre2callout(3)) every few ten
// thousand characters while the repetition of one character matches.
std::string oniguruma_to_interruptible_pcre2(std::string_view pattern);

// Reads the "pattern" of a part of a tokenizer.json: {"Regex": ...} in Oniguruma's syntax, or
// {"String": ...}.
Regex read_pattern(Fields& fields);
// A pattern that matches `text` and nothing else.
std::string literal_pattern(const std::string& text);

}  // namespace recurve
