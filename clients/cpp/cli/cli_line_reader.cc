#include "clients/cpp/cli/cli_line_reader.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "clients/cpp/cli/cli_line_editor.h"

namespace recurve {
namespace {

class PlainReader final : public LineReader {
 public:
  explicit PlainReader(Interrupts& interrupts) : interrupts_(interrupts) {}
  Result next(const std::string& prompt, std::string* line) override;

 private:
  bool take_line(std::string* line);

  Interrupts& interrupts_;
  std::string buffer_;  // read and not yet returned
  bool ended_ = false;
};

bool PlainReader::take_line(std::string* line) {
  const size_t end = buffer_.find('\n');
  if (end == std::string::npos && !(ended_ && !buffer_.empty())) return false;
  *line = buffer_.substr(0, end);
  buffer_.erase(0, end == std::string::npos ? end : end + 1);
  return true;
}

LineReader::Result PlainReader::next(const std::string& prompt, std::string* line) {
  if (isatty(STDIN_FILENO) == 1) fmt::print(stderr, "{}", prompt);
  for (;;) {
    pollfd fds[2] = {{interrupts_.fd(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    const bool ready = buffer_.find('\n') != std::string::npos || ended_;
    if (poll(fds, 2, ready ? 0 : -1) < 0 && errno != EINTR) {
      throw std::system_error(errno, std::generic_category(), "cannot wait for standard input");
    }
    if (fds[0].revents) {
      interrupts_.clear_fd();
      buffer_.clear();
      return Result::kInterrupted;
    }
    if (take_line(line)) return Result::kLine;
    if (ended_) return Result::kEnd;
    if (!fds[1].revents) continue;
    char piece[4096];
    const ssize_t size = read(STDIN_FILENO, piece, sizeof piece);
    if (size < 0 && errno != EINTR && errno != EAGAIN) {
      throw std::system_error(errno, std::generic_category(), "cannot read standard input");
    }
    if (size == 0) ended_ = true;
    if (size > 0) buffer_.append(piece, static_cast<size_t>(size));
  }
}

}  // namespace

std::unique_ptr<LineReader> make_line_reader(Interrupts& interrupts, Completer completer) {
  interrupts.deliver_to_fd();
  if (can_edit_lines()) return std::make_unique<LineEditor>(interrupts, std::move(completer));
  return std::make_unique<PlainReader>(interrupts);
}

}  // namespace recurve
