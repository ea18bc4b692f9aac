#pragma once

#include <string>
#include <string_view>

namespace recurve {

// Properties of a code point, as the normalisers and pre-tokenizers of Hugging Face's `tokenizers`
// ask for them; the Unicode data is that of utf8proc.

bool is_white_space(char32_t c);      // White_Space
bool is_mark(char32_t c);             // category M
bool is_nonspacing_mark(char32_t c);  // category Mn
bool is_other(char32_t c);            // categories Cc, Cf, Co
bool is_chinese(char32_t c);          // the ranges of BERT's normaliser
bool is_nmt_control(char32_t c);      // what the Nmt normaliser drops
bool is_nmt_space(char32_t c);        // what it makes a space

// Appends a code point in UTF-8.
void append_utf8(char32_t c, std::string& out);
// Appends its lower case (Unicode's Lowercase_Mapping without conditions).
void append_lower_case(char32_t c, std::string& out);

// The code point that `utf8` (valid, not empty) begins with, and its bytes.
struct Character {
  char32_t code_point;
  size_t bytes;
};
Character first_code_point(std::string_view utf8);

}  // namespace recurve
