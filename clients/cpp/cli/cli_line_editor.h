#pragma once
#include <histedit.h>

#include <cwchar>
#include <filesystem>
#include <memory>
#include <string>

#include "clients/cpp/cli/cli_line_reader.h"

namespace recurve {

// Whether standard input and standard error are a terminal on which lines can be edited.
bool can_edit_lines();

// Edits lines with libedit: the keys of Emacs, Up and Down for earlier lines, Tab for completion.
// Earlier lines are in RECURVE_HISTORY (empty: no file), by default in
// $XDG_STATE_HOME/recurve/chat_history, which only its user may read.
class LineEditor final : public LineReader {
 public:
  LineEditor(Interrupts& interrupts, Completer completer);

  Result next(const std::string& prompt, std::string* line) override;

 private:
  static int read_character(EditLine* editor, wchar_t* character);
  static char* prompt_of(EditLine* editor);
  static unsigned char complete(EditLine* editor, wint_t key);
  static LineEditor& self(EditLine* editor);
  int read_character(wchar_t* character);
  unsigned char complete();
  void add_to_history(const std::string& line);

  Interrupts& interrupts_;
  const Completer completer_;
  const std::filesystem::path history_file_;  // empty: none
  std::string prompt_;
  bool interrupted_ = false;
  std::mbstate_t decoding_ = {};
  std::unique_ptr<History, decltype(&history_end)> history_;
  std::unique_ptr<EditLine, decltype(&el_end)> editor_;
};

}  // namespace recurve
