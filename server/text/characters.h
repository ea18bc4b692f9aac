#pragma once

#include <string>
#include <string_view>

namespace recurve {

// Properties of code points that the normalizers and pre-tokenizers of Hugging Face's `tokenizers`
// use. The Unicode data is that of utf8proc.

bool is_white_space(char32_t c);      // White_Space
bool is_mark(char32_t c);             // category M
bool is_nonspacing_mark(char32_t c);  // category Mn
bool is_other(char32_t c);            // categories Cc, Cf, Co
bool is_chinese(char32_t c);          // the ranges of BertNormalizer
bool is_nmt_control(char32_t c);      // removed by the normalizer Nmt
bool is_nmt_space(char32_t c);        // replaced by a space there

// Appends a code point in UTF-8.
void append_utf8(char32_t c, std::string& out);
// Appends its lower case (Unicode's Lowercase_Mapping without conditions).
void append_lower_case(char32_t c, std::string& out);

// The first code point of `utf8` (valid, not empty) and its size.
struct Character {
  char32_t code_point;
  size_t bytes;
};
Character first_code_point(std::string_view utf8);

}  // namespace recurve
