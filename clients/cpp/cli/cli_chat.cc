#include "clients/cpp/cli/cli_chat.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "clients/cpp/cli/cli.h"
#include "clients/cpp/cli/cli_chat_settings.h"
#include "clients/cpp/cli/cli_generate.h"
#include "clients/cpp/cli/cli_io.h"
#include "clients/cpp/cli/cli_line_reader.h"
#include "clients/cpp/cli/cli_request_flags.h"
#include "clients/cpp/cli/cli_session.h"
#include "clients/cpp/cli/cli_session_tree.h"

namespace recurve {
namespace {

constexpr const char* kHelp =
    "A line is the next text, an empty line continues the answer. Ctrl-C ends an answer.\n"
    "On a terminal a line that ends with \\ continues on the next one, and \"\"\" begins and ends "
    "a\n"
    "text of several lines; Up and Down return to earlier lines, Tab completes a command.\n"
    "  /system TEXT       set the system message, before the first line\n"
    "  /set [NAME VALUE]  set a flag for the next answers, as in /set temperature 0.5; print those "
    "set\n"
    "  /set default       restore the flags of the command line\n"
    "  /mark NAME         store the current state\n"
    "  /rewind NAME       return to a mark, or to a number of tokens: 0 is the empty session\n"
    "  /fork [NAME]       copy the session; the chat continues in this one\n"
    "  /tree              print the session, its marks and its forks\n"
    "  /info              print the session\n"
    "  /tool RESULT       result of a function call; one for each call, in order\n"
    "  /help              print this text\n"
    "  /quit              end the chat, like Ctrl-D\n"
    "  //...              send a line that begins with /...\n";
// With a space if an argument follows.
constexpr const char* kCommands[] = {"/system ", "/set ", "/mark ", "/rewind ", "/fork ",
                                     "/tree",    "/info", "/tool ", "/help",    "/quit"};
constexpr std::string_view kQuotes = "\"\"\"";

struct ChatFlags {
  v1::GenerateRequest request;
  ToolFlags tools;
  std::string system;
  bool raw = false;  // lines are text, whatever the model has
  std::string before = "\\n";
  std::string after;
  bool stats = false;
};

// \n, \t and \\ become what they stand for.
std::string unescaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    if (text[i] != '\\' || (next != 'n' && next != 't' && next != '\\')) {
      out += text[i];
      continue;
    }
    out += next == 'n' ? '\n' : next == 't' ? '\t' : '\\';
    ++i;
  }
  return out;
}

// One conversation: a session, the lines that go into it and the answers that come out.
class Chat {
 public:
  Chat(CliContext& context, const ChatFlags& flags)
      : context_(context),
        flags_(flags),
        client_(context.client()),
        reader_(make_line_reader(context.interrupts,
                                 [this](std::string_view line) { return completions(line); })),
        request_(flags.request),
        system_(flags.system),
        is_terminal_(isatty(STDIN_FILENO) == 1) {}

  int run();

 private:
  enum class Next { kGoOn, kEnd };

  void choose_form();
  void open();
  void close();
  int converse();
  Next handle(const std::string& line);
  Next handle_command(const std::string& line);
  void rewind(const std::string& to);
  void set(const std::string& setting);
  void set_system(const std::string& text);
  LineReader::Result next_text(std::string* text);
  std::vector<std::string> completions(std::string_view line);
  void fill_prompt(const std::string& line);
  void answer(const std::string& line);
  void add_result(const std::string& result);
  void ask();
  Next interrupted();

  template <class F>
  auto call(F&& f) {  // any short call; Ctrl-C cancels it
    Interrupts::Scope interrupt(context_.interrupts);
    return f(context_.call_options(interrupt.canceller()));
  }
  const std::string& session() const { return request_.session(); }

  CliContext& context_;
  const ChatFlags& flags_;
  Client client_;
  const std::unique_ptr<LineReader> reader_;
  v1::GenerateRequest request_;
  std::string system_;
  const bool is_terminal_;
  bool messages_ = false;           // lines are sent as messages, for the model's template to write
  bool is_ours_ = false;            // the session was made for this chat, and ends with it
  bool is_fresh_ = true;            // nothing is in the session yet
  bool done_once_ = false;          // by the server: turns of a durable session
  bool interrupt_said_ = false;     // the last thing at the prompt was Ctrl-C
  std::vector<std::string> calls_;  // ids of the last answer's calls of tools
  std::vector<std::string> results_;  // of the first of these
  int exit_code_ = kExitOk;
};

int Chat::run() {
  open();
  try {
    choose_form();
    const int code = converse();
    close();
    return code;
  } catch (...) {
    close();
    throw;
  }
}

// Messages where the session's model has a template for them.
void Chat::choose_form() {
  const auto info = call(
      [&](const CallOptions& options) { return client_.model_info(options, request_.model()); });
  messages_ = info.has_chat_template() && !flags_.raw;
  if (!messages_ && !flags_.system.empty()) {
    throw UsageError(flags_.raw ? "--system needs messages, so it does not go with --raw, --before "
                                  "and --after"
                                : "--system needs a model with a chat template");
  }
  if (!messages_ && !flags_.tools.tools_json.empty()) {
    throw UsageError("--tools needs a model with a chat template, and no --raw");
  }
  if (!flags_.raw && !info.chat_template_problem().empty()) {
    fmt::print(stderr, "recurve: {}: lines are sent as they are\n", info.chat_template_problem());
  }
}

// By its name, or by that of the session's adapter.
bool is_model_of(const std::string& name, const v1::Session& session) {
  if (name == session.model()) return true;
  const std::string& adapter = session.adapter();
  return !adapter.empty() &&
         (name == adapter || name == fmt::format("{}:{}", session.model(), adapter));
}

void Chat::open() {
  v1::OpenSessionRequest request;
  request.set_name(session());
  request.set_model(request_.model());
  request.set_initial_state(request_.initial_state());
  request.set_adapter(request_.adapter());
  is_ours_ = session().empty();
  v1::Session opened;
  try {
    opened =
        call([&](const CallOptions& options) { return client_.open_session(request, options); });
  } catch (const ClientError& error) {
    if (error.code() != grpc::StatusCode::ALREADY_EXISTS) throw;
    opened =
        call([&](const CallOptions& options) { return client_.get_session(session(), options); });
  }
  if (!request_.model().empty() && !is_model_of(request_.model(), opened)) {
    throw UsageError(fmt::format("session {} is of the model {}, not of {}: leave out --model",
                                 session(), opened.model(), request_.model()));
  }
  request_.set_session(opened.name());
  request_.set_model(opened.model());
  is_fresh_ = opened.position() == 0 && !opened.has_pending_token();
  done_once_ = is_done_once(request_, opened);
  if (is_terminal_) {
    fmt::print(stderr, "recurve: session {} at {} tokens; /help lists commands\n", session(),
               opened.position());
  }
}

void Chat::close() {
  if (!is_ours_) return;
  try {
    CallOptions options;
    options.timeout = std::chrono::seconds(5);  // not waited for; the session would expire anyway
    client_.close_session(session(), options);
  } catch (const ClientError&) {
    // The server has gone, or has closed it.
  }
}

int Chat::converse() {
  for (;;) {
    std::string line;
    const auto result = next_text(&line);
    Next next = Next::kGoOn;
    if (result == LineReader::Result::kEnd) {
      if (is_terminal_) fmt::print(stderr, "\n");
      return exit_code_;
    }
    if (result == LineReader::Result::kInterrupted) {
      next = interrupted();
    } else {
      interrupt_said_ = false;
      next = handle(line);
    }
    if (next == Next::kEnd) return exit_code_;
  }
}

// A line; on a terminal several where a backslash or quotes say so, as a script has none to spare.
LineReader::Result Chat::next_text(std::string* text) {
  using Result = LineReader::Result;
  Result result = reader_->next("> ", text);
  if (!is_terminal_ || result != Result::kLine) return result;
  const bool quoted = text->starts_with(kQuotes);
  if (quoted) text->erase(0, kQuotes.size());
  for (;;) {
    if (quoted ? text->ends_with(kQuotes) : !text->ends_with('\\')) break;
    if (!quoted) text->pop_back();
    std::string more;
    result = reader_->next(". ", &more);
    if (result == Result::kInterrupted) return result;
    if (result == Result::kEnd) return Result::kLine;
    *text += '\n' + more;
  }
  if (quoted) text->resize(text->size() - kQuotes.size());
  return Result::kLine;
}

// Of the last word of a command. Runs within the line editor, which takes no exception.
std::vector<std::string> Chat::completions(std::string_view line) {
  if (!line.starts_with('/')) return {};
  if (line.find(' ') == line.npos) return {std::begin(kCommands), std::end(kCommands)};
  std::vector<std::string> words;
  if (line.starts_with("/set ")) {
    for (const std::string& name : setting_names()) words.push_back(name + ' ');
    words.emplace_back("default");
  }
  if (line.starts_with("/rewind ")) {
    try {
      const auto now =
          call([&](const CallOptions& options) { return client_.get_session(session(), options); });
      for (const auto& mark : now.marks()) words.push_back(mark.name());
    } catch (const ClientError&) {
      // The command itself will report it.
    }
  }
  return words;
}

// At the prompt. Twice in a row ends the chat: once may have been meant for an answer that was just
// complete.
Chat::Next Chat::interrupted() {
  if (is_terminal_ && !interrupt_said_) {
    fmt::print(stderr, "\nrecurve: Ctrl-D ends the chat, and so does Ctrl-C once more\n");
    interrupt_said_ = true;
    return Next::kGoOn;
  }
  if (is_terminal_) fmt::print(stderr, "\n");
  exit_code_ = kExitInterrupted;
  return Next::kEnd;
}

// A person may continue after an error; a script ends with it.
Chat::Next Chat::handle(const std::string& line) {
  try {
    if (line.starts_with('/') && !line.starts_with("//")) return handle_command(line);
    answer(line.starts_with("//") ? line.substr(1) : line);
  } catch (const ClientError& error) {
    if (error.kind() != ClientError::Kind::kRefused &&
        error.kind() != ClientError::Kind::kCancelled) {
      throw;
    }
    print_error(error);
    if (!is_terminal_) {
      exit_code_ = exit_code(error);
      return Next::kEnd;
    }
  } catch (const UsageError& error) {
    fmt::print(stderr, "recurve: {}\n", error.what());
    if (!is_terminal_) {
      exit_code_ = kExitUsage;
      return Next::kEnd;
    }
  }
  return Next::kGoOn;
}

void Chat::fill_prompt(const std::string& line) {
  if (line.empty()) {
    request_.set_text("");
  } else if (!messages_) {
    request_.set_text((is_fresh_ ? "" : unescaped(flags_.before)) + line + unescaped(flags_.after));
  } else {
    request_.mutable_messages()->Clear();
    const auto add = [this](const char* role, const std::string& content) {
      auto* message = request_.mutable_messages()->add_messages();
      message->set_role(role);
      message->set_content(content);
    };
    if (is_fresh_ && !system_.empty()) add("system", system_);
    add("user", line);
  }
}

void Chat::answer(const std::string& line) {
  check_utf8(line, "the line");
  if (line.empty() && is_fresh_) return;
  fill_prompt(line);
  set_tools(flags_.tools, &request_);
  ask();
}

// They go in one turn, as the calls came.
void Chat::add_result(const std::string& result) {
  check_utf8(result, "the result");
  if (results_.size() == calls_.size()) {
    fmt::print(stderr, "recurve: no call waits for a result\n");
    return;
  }
  results_.push_back(result);
  if (results_.size() < calls_.size()) return;
  request_.mutable_messages()->Clear();
  for (size_t i = 0; i < calls_.size(); ++i) {
    auto* message = request_.mutable_messages()->add_messages();
    message->set_role("tool");
    message->set_content(results_[i]);
    message->set_fields_json(nlohmann::json{{"tool_call_id", calls_[i]}}.dump());
  }
  set_tools(flags_.tools, &request_);
  ask();
}

void Chat::ask() {
  is_fresh_ = false;
  calls_.clear();
  results_.clear();
  request_.set_report_progress(AnswerPrinter::shows_progress(context_.json));
  AnswerPrinter printer(context_.json, 1);
  Interrupts::Scope interrupt(context_.interrupts);
  try {
    const auto final = printer.print_answer(client_, request_, done_once_,
                                            context_.call_options(interrupt.canceller()));
    printer.end(true);
    calls_ = printer.call_ids();
    if (flags_.stats) print_stats(printer.prompt(), final);
  } catch (const ClientError&) {
    printer.end(true);
    if (!interrupt.interrupted()) throw;
  }
}

// A mark may have a number as its name.
void Chat::rewind(const std::string& to) {
  const bool is_number =
      !to.empty() && to.size() < 19 && to.find_first_not_of("0123456789") == to.npos;
  const auto now = call([&](const CallOptions& options) {
    v1::RewindSessionRequest request;
    request.set_name(session());
    bool is_mark = !is_number;
    if (is_number) {
      const v1::Session now = client_.get_session(session(), options);
      for (const auto& mark : now.marks()) is_mark = is_mark || mark.name() == to;
    }
    if (is_mark) {
      request.set_mark(to);
    } else {
      request.set_position(std::stoll(to));
    }
    return client_.rewind_session(request, options);
  });
  is_fresh_ = now.position() == 0 && !now.has_pending_token();
}

void Chat::set(const std::string& setting) {
  if (setting == "default") {
    *request_.mutable_sampling() = flags_.request.sampling();
    *request_.mutable_stop() = flags_.request.stop();
  } else if (!setting.empty()) {
    apply_setting(setting, &request_);
  }
  fmt::print(stderr, "{}", settings_text(request_));
}

void Chat::set_system(const std::string& text) {
  check_utf8(text, "the system message");
  if (!messages_) throw UsageError("/system needs a model with a chat template, and no --raw");
  if (!is_fresh_) {
    throw UsageError("the system message must come first: /rewind 0 returns to an empty session");
  }
  system_ = text;
}

Chat::Next Chat::handle_command(const std::string& line) {
  const size_t space = line.find(' ');
  const std::string name = line.substr(0, space);
  const std::string argument = space == std::string::npos ? "" : line.substr(space + 1);
  const auto print = [](const v1::Session& session) {
    fmt::print(stderr, "{}", session_table(session));
  };
  if (name == "/quit") return Next::kEnd;
  if (name == "/help") {
    fmt::print(stderr, "{}", kHelp);
  } else if (name == "/tool") {
    add_result(argument);
  } else if (name == "/info") {
    print(
        call([&](const CallOptions& options) { return client_.get_session(session(), options); }));
  } else if (name == "/mark") {
    call([&](const CallOptions& options) {
      return client_.mark_session(session(), argument, options);
    });
  } else if (name == "/rewind") {
    rewind(argument);
  } else if (name == "/set") {
    set(argument);
  } else if (name == "/system") {
    set_system(argument);
  } else if (name == "/tree") {
    const auto sessions =
        call([&](const CallOptions& options) { return client_.list_sessions("", options); });
    fmt::print(stderr, "{}", session_tree(sessions, session()));
  } else if (name == "/fork") {
    v1::ForkSessionRequest request;
    request.set_name(session());
    request.set_new_name(argument);
    const auto copy =
        call([&](const CallOptions& options) { return client_.fork_session(request, options); });
    fmt::print(stderr, "recurve: the copy is session {}\n", copy.name());
  } else {
    fmt::print(stderr, "recurve: no command {}; /help lists them, //... sends a line with /\n",
               name);
  }
  return Next::kGoOn;
}

}  // namespace

std::function<int()> add_chat_flags(CLI::App& command, CliContext& context) {
  const auto flags = std::make_shared<ChatFlags>();
  command.add_option_function<std::string>(
      "--session", [flags](const std::string& name) { flags->request.set_session(name); },
      "Continue this session, opened if necessary, and leave it open [default: a new one, closed "
      "at the end]");
  command.add_option("-s,--system", flags->system,
                     "System message before the first line of a new session [default: none]");
  command.add_flag("--raw", flags->raw,
                   "Send lines as text, even if the model has a chat "
                   "template");
  command
      .add_option("--before", flags->before,
                  "Text before every line but the first of a session, with \\n, \\t, \\\\; "
                  "implies --raw [default: \\n]")
      ->each([flags](const std::string&) { flags->raw = true; });
  command
      .add_option("--after", flags->after, "Text after every line, in the same way [default: none]")
      ->each([flags](const std::string&) { flags->raw = true; });
  add_start_flags(command, &flags->request);
  add_tool_flags(command, &flags->tools);
  add_stop_flags(command, &flags->request);
  add_sampling_flags(command, &flags->request);
  command.add_flag("--stats", flags->stats,
                   "Print tokens and times of each answer to standard error");
  return [&context, flags] { return Chat(context, *flags).run(); };
}

void add_chat(CLI::App& app, CliContext& context) {
  CLI::App& command = *app.add_subcommand(
      "chat",
      "Chat on one session, a line at a time. A line is a user's message if the model has a chat "
      "template, else plain text. /help lists the commands; Ctrl-C ends an answer, Ctrl-D the "
      "chat.");
  const auto chat = add_chat_flags(command, context);
  command.callback([&context, chat] { context.run = chat; });
}

}  // namespace recurve
