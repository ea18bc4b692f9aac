#pragma once
#include <string>

#include "clients/cpp/cli/cli_interrupt.h"

namespace recurve {

// Lines of standard input, while Ctrl-C may come in between.
class LineReader {
 public:
  // SIGINT is delivered to the reader from now on. `interrupts` must outlive it.
  explicit LineReader(Interrupts& interrupts);

  enum class Result { kLine, kEnd, kInterrupted };
  // Waits for the next line, without its line break. Interrupted: what was typed is forgotten.
  Result next(std::string* line);

 private:
  bool take_line(std::string* line);

  Interrupts& interrupts_;
  std::string buffer_;  // read and not yet returned
  bool ended_ = false;
};

}  // namespace recurve
