#include "clients/cpp/cli/cli_io.h"

#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <system_error>

#include "clients/cpp/cli/cli.h"

namespace recurve {

void write_out(std::string_view text) {
  const size_t written = std::fwrite(text.data(), 1, text.size(), stdout);
  if (written == text.size() && std::fflush(stdout) == 0) return;
  if (errno == EPIPE) throw OutputClosed();
  throw std::system_error(errno, std::generic_category(), "cannot write to standard output");
}

std::string to_json(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) throw std::runtime_error("no JSON of a message: " + status.ToString());
  return json;
}

void write_json_line(const google::protobuf::Message& message) {
  write_out(to_json(message) + "\n");
}

bool in_is_piped() {
  struct stat in{};
  return fstat(STDIN_FILENO, &in) == 0 && (S_ISFIFO(in.st_mode) || S_ISREG(in.st_mode));
}
bool out_is_terminal() { return isatty(STDOUT_FILENO) == 1; }
bool error_is_terminal() { return isatty(STDERR_FILENO) == 1; }
bool error_has_colours() {
  const char *none = std::getenv("NO_COLOR"), *terminal = std::getenv("TERM");
  return error_is_terminal() && (none == nullptr || *none == '\0') && terminal != nullptr &&
         std::string_view(terminal) != "dumb";
}

void StatusLine::show(const std::string& text) {
  if (!error_is_terminal() || (text.empty() && width_ == 0)) return;
  fmt::print(stderr, "\r{:<{}}\r{}", "", width_, text);
  width_ = text.size();
}

std::string read_all(const std::string& file) {
  PieceReader reader(file);
  std::string text;
  for (std::string piece; reader.next({}, &piece);) text += piece;
  return text;
}

PieceReader::PieceReader(const std::string& file)
    : name_(file == "-" ? "standard input" : file),
      file_(file == "-" ? stdin : std::fopen(file.c_str(), "rb"),
            file == "-" ? std::fflush : std::fclose) {
  if (!file_) throw UsageError(fmt::format("{} cannot be read: {}", name_, std::strerror(errno)));
  if (file == "-" && isatty(STDIN_FILENO)) {
    fmt::print(stderr, "recurve: reading the text from standard input; Ctrl-D ends it\n");
  }
}

bool PieceReader::next(std::stop_token stop, std::string* piece) {
  constexpr int kLookMs = 100;  // for the stop
  const int fd = fileno(file_.get());
  pollfd in{.fd = fd, .events = POLLIN, .revents = 0};
  for (;;) {
    if (stop.stop_requested()) return false;
    const int ready = poll(&in, 1, kLookMs);
    if (ready > 0 || (ready < 0 && errno != EINTR)) break;
  }
  piece->resize(size_t{64} << 10);
  const ssize_t size = ::read(fd, piece->data(), piece->size());
  if (size < 0) throw UsageError(fmt::format("{} cannot be read: {}", name_, std::strerror(errno)));
  piece->resize(static_cast<size_t>(size));
  return size > 0;
}

namespace {

// Length of the UTF-8 character at the front of `text`; 0 where there is none (Unicode, table 3-7).
size_t utf8_character_size(std::string_view text) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const auto is_tail = [&](size_t i, unsigned low = 0x80, unsigned high = 0xBF) {
    return byte(i) >= low && byte(i) <= high;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return is_tail(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const unsigned low = lead == 0xE0 ? 0xA0 : 0x80;   // no overlong form
    const unsigned high = lead == 0xED ? 0x9F : 0xBF;  // no surrogate
    return is_tail(1, low, high) && is_tail(2) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const unsigned low = lead == 0xF0 ? 0x90 : 0x80;   // no overlong form
    const unsigned high = lead == 0xF4 ? 0x8F : 0xBF;  // nothing beyond U+10FFFF
    return is_tail(1, low, high) && is_tail(2) && is_tail(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t size = utf8_character_size(text.substr(at));
    if (size == 0) return at;
    at += size;
  }
  return std::nullopt;
}

void check_utf8(std::string_view text, const std::string& what) {
  const auto at = find_invalid_utf8(text);
  if (!at) return;
  throw ClientError(ClientError::Kind::kRefused, grpc::StatusCode::INVALID_ARGUMENT,
                    fmt::format("{} must be valid UTF-8, the error is at byte {} (0x{:02x})", what,
                                *at, static_cast<unsigned char>(text[*at])));
}

std::vector<int32_t> parse_ids(std::string_view text, const std::string& what) {
  constexpr std::string_view kSeparators = " \t\r\n,";
  std::vector<int32_t> ids;
  for (;;) {
    text.remove_prefix(std::min(text.find_first_not_of(kSeparators), text.size()));
    if (text.empty()) return ids;
    const std::string_view word = text.substr(0, text.find_first_of(kSeparators));
    int32_t id = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size()) {
      throw UsageError(fmt::format("{}: '{}' is not a token id, a whole number", what, word));
    }
    ids.push_back(id);
    text.remove_prefix(word.size());
  }
}

std::string TextSource::read() const { return text ? *text : read_all(path()); }

std::string TextSource::name() const {
  if (text) return "the prompt";
  return file.empty() || file == "-" ? "standard input" : file;
}

void add_text_source(CLI::App& command, TextSource* source, const std::string& what) {
  auto* text = command.add_option_function<std::string>(
      "-p,--prompt", [source](const std::string& value) { source->text = value; },
      what + ", in UTF-8 [default: standard input, including its last line break]");
  command.add_option("-f,--file", source->file, "Read it from this file; -: standard input")
      ->type_name("PATH")
      ->excludes(text);
}

}  // namespace recurve
