#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "clients/cpp/cli/cli_io.h"
#include "clients/cpp/client.h"

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

  // Asks for the answer and prints it. done_once: as is_done_once() says.
  v1::GenerateFinal print_answer(Client& client, const v1::GenerateRequest& request, bool done_once,
                                 const CallOptions& options);
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
  // What the answer has written to a stream.
  struct Written {
    std::string text = {};
    size_t repeated = 0;  // bytes of it that have come again
    // The part of `next` that is not written yet.
    std::string_view add(std::string_view next);
  };
  static bool ended_by_call(const Choice& choice) { return choice.calls > 0 && !choice.line_begun; }

  void print(const v1::GenerateResponse& response);
  // The same answer comes again from its beginning: what is written already is left out. Not for
  // lines of JSON. print() throws std::runtime_error if the answer is another one.
  void restart();
  void take(const v1::Chunk& chunk);
  void take(const v1::ToolCallPart& part, Choice* choice);
  void take(const v1::GenerateFinal& final);
  void emit(const std::string& text, Choice* choice);
  void end_call(Choice* choice);
  void write(std::string_view text) { write_out(out_.add(text)); }

  bool json_;
  bool line_open_ = false;  // text was written after the last line break that the printer wrote
  std::vector<Choice> choices_;
  std::vector<std::string> call_ids_;
  v1::PromptInfo prompt_;
  StatusLine status_;
  Written out_, reasoning_;
};

// One line about what a request took, to standard error.
void print_stats(const v1::PromptInfo& prompt, const v1::GenerateFinal& final);

}  // namespace recurve
