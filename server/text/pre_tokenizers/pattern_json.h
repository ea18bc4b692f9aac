#pragma once

#include <cstddef>
#include <string>

#include "server/text/json/json_fields.h"
#include "server/text/pre_tokenizers/regex.h"

namespace recurve {

// What the readers of a tokenizer.json's parts share.

// The "pattern" of an object: {"Regex": ...} in Oniguruma's syntax, or {"String": ...}.
Regex read_pattern(Fields& fields);

// A pattern that matches `text` and nothing else.
std::string literal_pattern(const std::string& text);

// Throws UnsupportedTokenizer for an object of this type.
[[noreturn]] void refuse_type(const Fields& fields, const std::string& type);

// Throws UnsupportedTokenizer if a chain that has `steps` steps may not have one more.
void check_steps(const Fields& fields, size_t steps);

}  // namespace recurve
