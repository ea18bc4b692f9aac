#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace recurve::jinja {

struct Token {
  enum class Kind {
    kText,        // between the tags, white space removed as the tags say
    kPrintBegin,  // {{
    kPrintEnd,
    kBlockBegin,  // {%
    kBlockEnd,
    kName,
    kString,  // `value` is what it stands for
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind;
  std::string value;
  int line;

  bool is(Kind k, std::string_view v) const { return kind == k && value == v; }
};

// The tokens of a template, as Jinja 3 with trim_blocks and lstrip_blocks cuts it. Comments are
// left out. Throws Error.
std::vector<Token> tokenise(std::string_view source);

}  // namespace recurve::jinja
