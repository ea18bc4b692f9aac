#pragma once
#include <string>
#include <vector>

#include "clients/cpp/cli/cli_io.h"
#include "recurve/v1/inference.pb.h"

namespace recurve {

// Writes the messages of one Generate call to standard output: the text alone as it comes, each
// call of a tool as a line {"id": ..., "name": ..., "arguments": {...}}; or each message as a line
// of JSON. The reasoning of the first choice goes to standard error. Of several choices one is
// written after the other; what comes early waits.
class AnswerPrinter {
 public:
  AnswerPrinter(bool json, int choices);
  // Whether a request should report its progress, which this shows on a terminal.
  static bool shows_progress(bool json) { return !json && error_is_terminal(); }

  void print(const v1::GenerateResponse& response);
  // Ends the line where a line break belongs: on a terminal, and between several answers. Also
  // right after an error.
  void end(bool always_break = false);

  const v1::PromptInfo& prompt() const { return prompt_; }
  // Of the first choice's calls of tools, in order.
  const std::vector<std::string>& call_ids() const { return call_ids_; }

 private:
  struct Choice {
    std::string waiting = {};  // not written yet, of a later choice
    bool line_begun = false;   // the last printed character is no line break
    bool in_call = false;      // whose line is open
    int32_t calls = 0;         // that have begun
  };
  static bool ended_by_call(const Choice& choice) { return choice.calls > 0 && !choice.line_begun; }

  void take(const v1::Chunk& chunk);
  void take(const v1::ToolCallPart& part, Choice* choice);
  void take(const v1::GenerateFinal& final);
  void emit(const std::string& text, Choice* choice);
  void end_call(Choice* choice);

  bool json_;
  bool line_open_ = false;  // text was written after the last line break that the printer wrote
  std::vector<Choice> choices_;
  std::vector<std::string> call_ids_;
  v1::PromptInfo prompt_;
  StatusLine status_;
};

// One line about what a request took, to standard error.
void print_stats(const v1::PromptInfo& prompt, const v1::GenerateFinal& final);

}  // namespace recurve
