#pragma once

#include <string>
#include <string_view>

namespace recurve {

// A pattern in Oniguruma's Ruby syntax (what Hugging Face tokenizers run) as one that PCRE2 reads
// the same way under UTF | UCP | MULTILINE.
//
// Rewritten: \s \S (PCRE2 adds U+180E), \w \W (PCRE2 has letters, numbers and "_" only), \uHHHH,
// \p{Script} (PCRE2 matches script extensions). Refused, because the engines differ and no
// tokenizer needs it: nested and intersected character classes, \h \v \b \R \X \K, back references,
// named groups, inline flags other than (?i:...), {n,m}+, {,n}, verbs.
// Sources: Oniguruma doc/RE; pcre2pattern(3).
// Throws UnsupportedTokenizer naming what it met.
std::string oniguruma_to_pcre2(std::string_view pattern);

// The same for texts of many megabytes: a pattern that matches what the other matches, and calls
// out (pcre2callout(3)) every few ten thousand characters of what one character is repeated over.
std::string oniguruma_to_interruptible_pcre2(std::string_view pattern);

}  // namespace recurve
