#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace recurve {

// How a model writes the calls of tools that it makes. A call is a JSON object with the tool's name
// and its arguments, in this order, and what differs is what stands around it.
struct ToolForm {
  enum class Shape {
    kMarked,  // text, in which each call stands between `mark` and `close`
    kList,    // text, then `mark` and a JSON array of calls, with which the answer ends
    kWhole,   // the answer is a call, and begins with its brace, or is a text
  };
  std::string_view name;
  Shape shape;
  // A chat template is of this form if it has all of these texts; the second may be empty.
  std::string_view signs[2];
  std::string_view mark, close;  // as the model writes them, with white space
  std::string_view arguments;    // the name of the field
  // Of the calls' ids, which are the server's: some templates want nine letters or digits.
  std::string_view id_prefix;
  size_t id_characters;  // of letters and digits behind it
};

// The form of a chat template; null: none that is known.
const ToolForm* tool_form_of(std::string_view chat_template);

// The names that there are, as "hermes, llama-3, ...".
std::string tool_form_names();

// Both without the white space at their ends: what of them may be control tokens.
std::string_view mark_token(const ToolForm& form);
std::string_view close_token(const ToolForm& form);

}  // namespace recurve
