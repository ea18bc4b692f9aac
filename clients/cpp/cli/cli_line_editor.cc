#include "clients/cpp/cli/cli_line_editor.h"

#include <fmt/format.h>
#include <langinfo.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "clients/cpp/cli/cli_io.h"

namespace recurve {
namespace {

constexpr int kMostLines = 1000;  // of the history
constexpr char kEscape = '\1';    // around bytes of the prompt that take no columns

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::filesystem::path history_file() {
  if (std::getenv("RECURVE_HISTORY") != nullptr) return variable("RECURVE_HISTORY");
  std::filesystem::path folder = variable("XDG_STATE_HOME");
  if (folder.empty() && !variable("HOME").empty()) folder = variable("HOME") + "/.local/state";
  return folder.empty() ? folder : folder / "recurve" / "chat_history";
}

// Lines are UTF-8, whatever the locale.
void set_utf8() {
  setlocale(LC_CTYPE, "");
  if (std::string_view(nl_langinfo(CODESET)) != "UTF-8") setlocale(LC_CTYPE, "C.UTF-8");
}

std::string common_prefix(const std::vector<std::string>& words) {
  std::string prefix = words.front();
  for (const std::string& word : words) {
    const auto end = std::ranges::mismatch(prefix, word).in1;
    prefix.erase(end, prefix.end());
  }
  return prefix;
}

}  // namespace

bool can_edit_lines() {
  const std::string terminal = variable("TERM");
  return isatty(STDIN_FILENO) == 1 && error_is_terminal() && !terminal.empty() &&
         terminal != "dumb";
}

LineEditor::LineEditor(Interrupts& interrupts, Completer completer)
    : interrupts_(interrupts),
      completer_(std::move(completer)),
      history_file_(history_file()),
      history_(history_init(), history_end),
      editor_(nullptr, el_end) {
  set_utf8();
  editor_.reset(el_init("recurve", stdin, stderr, stderr));
  if (!editor_ || !history_) throw std::runtime_error("cannot edit lines on this terminal");
  EditLine* const editor = editor_.get();
  el_set(editor, EL_CLIENTDATA, this);
  el_set(editor, EL_EDITOR, "emacs");
  el_set(editor, EL_SIGNAL, 0);  // Interrupts has them
  el_set(editor, EL_PROMPT_ESC, &LineEditor::prompt_of, kEscape);
  el_set(editor, EL_GETCFN, static_cast<int (*)(EditLine*, wchar_t*)>(&LineEditor::read_character));
  // Wide text is not copied; libedit would leak the copies.
  el_wset(editor, EL_ADDFN, L"recurve-complete", L"Complete the word",
          static_cast<unsigned char (*)(EditLine*, wint_t)>(&LineEditor::complete));
  el_set(editor, EL_BIND, "^I", "recurve-complete", nullptr);
  HistEvent event;
  history(history_.get(), &event, H_SETSIZE, kMostLines);
  history(history_.get(), &event, H_SETUNIQUE, 1);
  if (!history_file_.empty()) history(history_.get(), &event, H_LOAD, history_file_.c_str());
  el_set(editor, EL_HIST, history, history_.get());
}

LineReader::Result LineEditor::next(const std::string& prompt, std::string* line) {
  prompt_ =
      error_has_colours() ? fmt::format("{0}\033[1m{0}{1}{0}\033[0m{0}", kEscape, prompt) : prompt;
  interrupted_ = false;
  el_resize(editor_.get());
  el_set(editor_.get(), EL_PREP_TERM, 1);  // before the prompt: what is typed after it is a key
  int size = 0;
  const char* const text = el_gets(editor_.get(), &size);
  if (interrupted_) return Result::kInterrupted;
  if (text == nullptr || size <= 0) return Result::kEnd;
  *line = text;
  if (line->ends_with('\n')) line->pop_back();
  if (!line->empty()) add_to_history(*line);
  return Result::kLine;
}

// Each line is stored at once: a terminal may close at any time.
void LineEditor::add_to_history(const std::string& line) {
  HistEvent event;
  history(history_.get(), &event, H_ENTER, line.c_str());
  if (history_file_.empty()) return;
  std::error_code ignored;  // a chat without a history file is a chat
  std::filesystem::create_directories(history_file_.parent_path(), ignored);
  const mode_t mask = umask(077);
  history(history_.get(), &event, H_SAVE, history_file_.c_str());
  umask(mask);
}

LineEditor& LineEditor::self(EditLine* editor) {
  void* data = nullptr;
  el_get(editor, EL_CLIENTDATA, &data);
  return *static_cast<LineEditor*>(data);
}

char* LineEditor::prompt_of(EditLine* editor) { return self(editor).prompt_.data(); }
int LineEditor::read_character(EditLine* editor, wchar_t* character) {
  return self(editor).read_character(character);
}
unsigned char LineEditor::complete(EditLine* editor, wint_t) { return self(editor).complete(); }

// 1: a character; 0: the end of the input; -1: Ctrl-C.
int LineEditor::read_character(wchar_t* character) {
  for (;;) {
    pollfd fds[2] = {{interrupts_.fd(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    if (poll(fds, 2, -1) < 0 && errno != EINTR) return 0;
    if (fds[0].revents) {
      interrupts_.clear_fd();
      interrupted_ = true;
      errno = EINTR;
      return -1;
    }
    if (!fds[1].revents) continue;
    char byte = 0;
    const ssize_t size = read(STDIN_FILENO, &byte, 1);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return 0;
    const size_t used = std::mbrtowc(character, &byte, 1, &decoding_);
    if (used == static_cast<size_t>(-2)) continue;
    if (used == static_cast<size_t>(-1)) {
      decoding_ = {};
      *character = L'\xFFFD';
    }
    return 1;
  }
}

// Extends the word before the cursor as far as all candidates agree, or else lists them.
unsigned char LineEditor::complete() {
  const LineInfo* const info = el_line(editor_.get());
  const std::string_view line(info->buffer, static_cast<size_t>(info->cursor - info->buffer));
  const std::string_view word = line.substr(line.find_last_of(' ') + 1);
  std::vector<std::string> words = completer_(line);
  std::erase_if(words, [&](const std::string& one) { return !one.starts_with(word); });
  if (words.empty()) return CC_ERROR;
  const std::string rest = common_prefix(words).substr(word.size());
  if (!rest.empty()) {
    return el_insertstr(editor_.get(), rest.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }
  fmt::print(stderr, "\n{}\n", fmt::join(words, "  "));
  return CC_REDISPLAY;
}

}  // namespace recurve
