#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "clients/cpp/cli/cli_interrupt.h"

namespace recurve {

// Lines of standard input, while Ctrl-C may come in between.
class LineReader {
 public:
  virtual ~LineReader() = default;

  enum class Result { kLine, kEnd, kInterrupted };
  // Prints the prompt on a terminal, and waits for the next line, without its line break.
  // Interrupted: what was typed is forgotten.
  virtual Result next(const std::string& prompt, std::string* line) = 0;
};

// What the last word of a line may be, each as a whole word, with a space if another follows.
// Called while a line is edited.
using Completer = std::function<std::vector<std::string>(std::string_view line)>;

// A line editor with a history if standard input and standard error are terminals, else a plain
// reader. SIGINT is delivered to the reader from now on. `interrupts` must outlive it.
std::unique_ptr<LineReader> make_line_reader(Interrupts& interrupts, Completer completer);

}  // namespace recurve
