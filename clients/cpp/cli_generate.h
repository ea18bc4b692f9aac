#pragma once
#include <string>
#include <vector>

#include "recurve/v1/inference.pb.h"

namespace recurve {

// Writes the messages of one Generate call to standard output: the text alone as it comes, or each
// message as a line of JSON. Of several choices one is written after the other; what comes early
// waits.
class AnswerPrinter {
 public:
  AnswerPrinter(bool json, int choices);

  void print(const v1::GenerateResponse& response);
  // Ends the line where a line break belongs: on a terminal, and between several answers. Also
  // right after an error.
  void end(bool always_break = false);

  const v1::PromptInfo& prompt() const { return prompt_; }

 private:
  void print_chunk(const v1::Chunk& chunk);
  void print_waiting();

  bool json_;
  bool line_open_ = false;  // text was written after the last line break that the printer wrote
  std::vector<std::string> waiting_;  // (choices) text of later choices
  v1::PromptInfo prompt_;
};

// One line about what a request took, to standard error.
void print_stats(const v1::PromptInfo& prompt, const v1::GenerateFinal& final);

}  // namespace recurve
