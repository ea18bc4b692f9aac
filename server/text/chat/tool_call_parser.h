#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/chat/parameter_reader.h"

namespace recurve {

// The format of a model's tool calls. Except with kParameters, a call is a JSON object with the
// tool's name and its arguments, in this order; formats differ in the text around it.
struct ToolForm {
  enum class Shape {
    kMarked,      // text, in which each call is between `mark` and `close`
    kList,        // text, then `mark`, a JSON array of calls and `close`, which ends the answer
    kWhole,       // the answer is either one call, without text before it, or text
    kParameters,  // like kMarked, with `<function=NAME>`, its parameters (parameter_reader.h) and
                  // `</function>` as the call
  };
  std::string_view name;
  Shape shape;
  // A chat template with both of these texts has this format; the second may be empty.
  std::string_view signs[2];
  std::string_view mark, close;  // with the white space that the model generates
  std::string_view arguments;    // name of the field of arguments
  // Of the ids that the server gives to calls. Some templates require nine letters or digits.
  std::string_view id_prefix;
  size_t id_characters;  // letters and digits after the prefix
};

// The format of a chat template; null: unknown.
const ToolForm* tool_form_of(std::string_view chat_template);

// The names of all formats: "hermes, mistral, ...".
std::string tool_form_names();

// `mark` and `close` without white space at their ends, which may be control tokens.
std::string_view mark_token(const ToolForm& form);
std::string_view close_token(const ToolForm& form);

// New parts of one tool call.
struct ToolCallPart {
  int32_t index = 0;      // of the call in its answer
  std::string id = {};    // in the first part of a call; not set by the parser
  std::string name = {};  // in the first part of a call
  std::string arguments = {};
};

// Separates the tool calls in an answer from its text, while it is generated. What cannot be parsed
// as a call is text, also if it begins like one; so is a call that ends before its arguments.
class ToolCallParser {
 public:
  // The form and the types must outlive it. `types`: of the parameters, with kParameters; null or
  // without a called tool: any. `exclusive`: an answer that does not begin with a call is text.
  explicit ToolCallParser(const ToolForm& form, const ToolTypes* types = nullptr,
                          bool exclusive = false);

  // Takes the next part of the answer. Appends the text outside of calls, and the parts of calls,
  // that are certain now.
  void feed(std::string_view text, std::string* content, std::vector<ToolCallPart>* calls);
  // Ends the answer. Appends the rest of its text.
  void finish(std::string* content);

  // The number of calls whose arguments are complete.
  int32_t whole_calls() const { return whole_; }
  // Whether the arguments of the last call are incomplete.
  bool cut() const { return whole_ <= index_; }

 private:
  // What is expected next.
  enum class State { kStart, kText, kHead, kArguments, kTail, kRest };
  struct Out {
    std::string* content;
    std::vector<ToolCallPart>* calls;
  };

  bool step(const Out& out);
  bool read_start();
  bool read_text(const Out& out);
  bool read_head(const Out& out);
  bool read_function(const Out& out);
  bool read_arguments(const Out& out);
  bool read_parameters(const Out& out);
  std::string* arguments_of_call(const Out& out);
  bool read_tail();
  void reject_call();

  const ToolForm& form_;
  const ToolTypes* types_;
  const bool exclusive_;
  const std::string_view mark_, close_;  // without white space at their ends
  State state_ = State::kStart;
  std::string held_;  // input that is not processed yet
  std::string read_;  // input since the mark, which is text if it turns out not to be a call
  int32_t index_ = -1, whole_ = 0;
  int depth_ = 0;  // open braces and brackets in the arguments
  bool in_string_ = false, escaped_ = false;
  ParameterReader parameters_;
};

}  // namespace recurve
