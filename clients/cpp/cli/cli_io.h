#pragma once
#include <google/protobuf/message.h>

#include <CLI/App.hpp>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "clients/cpp/client_error.h"

namespace recurve {

// The reader of standard output has gone. Ends the command quietly.
struct OutputClosed {};

// Writes to standard output and flushes. Throws OutputClosed, or std::system_error where the output
// fails otherwise (a full disk).
void write_out(std::string_view text);
// A message as one line of JSON: names as in the .proto files, defaults included, 64-bit integers
// as strings, bytes in base64.
std::string to_json(const google::protobuf::Message& message);
void write_json_line(const google::protobuf::Message& message);
// Whether standard input is a pipe or a file, e.g. no terminal and not /dev/null.
bool in_is_piped();
bool out_is_terminal();
bool error_is_terminal();
// Whether standard error is a terminal that shows colours, and NO_COLOR is not set.
bool error_has_colours();

// A line of standard error that shows what is going on, if that is a terminal; else nothing.
class StatusLine {
 public:
  ~StatusLine() { clear(); }
  void show(const std::string& text);  // instead of the text before
  void clear() { show(""); }

 private:
  size_t width_ = 0;
};

// Everything in the file, or in standard input for "-". Throws UsageError naming the file.
std::string read_all(const std::string& file);

// The same piece by piece: whatever has come when it is asked for.
class PieceReader {
 public:
  explicit PieceReader(const std::string& file);  // UsageError
  // False at the end, and once a stop is requested.
  bool next(std::stop_token stop, std::string* piece);

 private:
  std::string name_;
  std::unique_ptr<FILE, int (*)(FILE*)> file_;
};

// Position of the first byte that is not part of a UTF-8 character; none where all are.
std::optional<size_t> find_invalid_utf8(std::string_view text);
// Throws the server's message for it: a `string` of the protocol holds UTF-8 only. `what`
// begins the sentence.
void check_utf8(std::string_view text, const std::string& what);

// Numbers separated by spaces, line breaks or commas. Throws UsageError; `what` begins the
// sentence.
std::vector<int32_t> parse_ids(std::string_view text, const std::string& what);

// Where a text of a command comes from: --prompt TEXT, --file F, or standard input.
struct TextSource {
  std::optional<std::string> text;
  std::string file;

  // The text as it is. Not checked to be UTF-8.
  std::string read() const;
  std::string path() const { return file.empty() ? "-" : file; }  // unless it is `text`
  std::string name() const;  // for messages: "the prompt", or the file's name
};

// Adds --prompt and --file. `what` begins the help: "The prompt".
void add_text_source(CLI::App& command, TextSource* source, const std::string& what);

}  // namespace recurve
