#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/chat/tool_forms.h"

namespace recurve {

// What is new of one call of a tool.
struct ToolCallPart {
  int32_t index = 0;      // of the call in its answer
  std::string id = {};    // in the first part of a call, and not the parser's to say
  std::string name = {};  // likewise
  std::string arguments = {};
};

// Tells the calls of tools in an answer from its text, as both come. What does not read as a call
// is text, whatever it began with; so is what has been cut before its arguments began.
class ToolCallParser {
 public:
  // The form outlives it.
  explicit ToolCallParser(const ToolForm& form);

  // The answer goes on. Appends what has become certain: its text outside of calls, and its calls.
  void feed(std::string_view text, std::string* content, std::vector<ToolCallPart>* calls);
  // It has ended.
  void finish(std::string* content);

  // Whose arguments have come to their end.
  int32_t whole_calls() const { return whole_; }
  // Whether the last call that began has not.
  bool cut() const { return whole_ <= index_; }

 private:
  // What comes next.
  enum class State { kStart, kText, kHead, kArguments, kTail, kRest };
  struct Out {
    std::string* content;
    std::vector<ToolCallPart>* calls;
  };

  bool step(const Out& out);
  bool read_start();
  bool read_text(const Out& out);
  bool read_head(const Out& out);
  bool read_arguments(const Out& out);
  bool read_tail();
  void give_up();

  const ToolForm& form_;
  const std::string_view mark_, close_;  // without white space at their ends
  State state_ = State::kStart;
  std::string held_;  // not said yet
  std::string read_;  // since the mark: text again where it is no call
  int32_t index_ = -1, whole_ = 0;
  int depth_ = 0;  // of braces and brackets in the arguments
  bool in_string_ = false, escaped_ = false;
};

}  // namespace recurve
