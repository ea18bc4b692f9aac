#include "clients/cpp/cli/cli.h"

#include <fmt/format.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>

#include "clients/cpp/cli/cli_io.h"
#include "clients/cpp/tls_flags.h"
#include "server/command_line/program_page.h"
#include "server/startup/usage.h"
#include "server/startup/version.h"

namespace recurve {

Client CliContext::client() const {
  try {
    return Client({server, tls, key()});
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
}

CallOptions CliContext::call_options(Canceller* canceller) const {
  CallOptions options;
  if (timeout_seconds > 0) options.timeout = std::chrono::duration<double>(timeout_seconds);
  options.canceller = canceller;
  return options;
}

void print_error(const ClientError& error) {
  // Its code is that of a server that loads.
  const bool unreachable = error.kind() == ClientError::Kind::kUnreachable;
  fmt::print(stderr, "{}recurve:{} {}\n", error_has_colours() ? "\033[1;31m" : "",
             error_has_colours() ? "\033[0m" : "", unreachable ? error.message() : error.what());
  if (!error.hint().empty()) {
    fmt::print(stderr, "recurve: {}{}\n", error.hint(),
               unreachable ? ", or name another with --server HOST:PORT" : "");
  }
}

namespace {

constexpr const char* kAbout =
    "Client of a Recurve inference server.\n"
    "  recurve \"PROMPT\"            short for: recurve ask \"PROMPT\"\n"
    "  recurve COMMAND [OPTIONS]   see Subcommands; recurve help COMMAND prints its flags\n\n"
    "These flags can also follow a command:";

constexpr const char* kExitCodes =
    "Exit codes:\n"
    "  0    done; also if the reader of standard output has closed it\n"
    "  1    the server refused the request or failed; its message is on standard error\n"
    "  2    wrong use\n"
    "  3    no server can be reached, or the connection was lost\n"
    "  4    the server is loading its model or draining\n"
    "  130  interrupted; a running request was cancelled\n\n"
    "--json prints each message as one line of JSON: with the field names of the .proto files "
    "and\ndefault values, 64-bit integers as strings, bytes in base64.\n";

// "recurve help generate" prints what "recurve generate --help" prints.
void add_help(CLI::App& app, CliContext& context) {
  CLI::App& command = *app.add_subcommand("help", "Print the help of a command");
  const auto names = std::make_shared<std::vector<std::string>>();
  command.add_option("command", *names, "The command; default: all of recurve");
  command.callback([&app, &context, names] {
    context.run = [&app, names] {
      const CLI::App* named = &app;
      std::string path = app.get_name();
      for (const std::string& name : *names) {
        const std::vector<std::string> commands = commands_of(*named);
        if (std::ranges::find(commands, name) == commands.end()) {
          throw UsageError(unknown_word_text(*named, name, {}));
        }
        named = named->get_subcommand(name);
        path += " " + name;
      }
      write_out(named->get_formatter()->make_help(named, path, CLI::AppFormatMode::Normal));
      return kExitOk;
    };
  });
}

void add_commands(CLI::App& app, CliContext& context) {
  add_ask(app, context);
  add_generate(app, context);
  add_chat(app, context);
  add_run(app, context);
  add_embed(app, context);
  add_score(app, context);
  add_session(app, context);
  add_tokenize(app, context);
  add_detokenize(app, context);
  add_info(app, context);
  add_health(app, context);
  add_abort(app, context);
  add_models(app, context);
  add_keys(app, context);
  add_store(app, context);
  add_help(app, context);
  for (CLI::App* command : app.get_subcommands({})) {
    command->footer(
        "Also --server, --timeout and --json, and the exit codes: see 'recurve --help'.");
  }
}

// The protocol carries UTF-8 only, so no argument may hold anything else.
void check_arguments(int count, char** arguments) {
  for (int i = 1; i < count; ++i) {
    if (const auto at = find_invalid_utf8(arguments[i])) {
      throw UsageError(
          fmt::format("argument {} must be valid UTF-8, the error is at its byte {}", i, *at));
    }
  }
}

// Whether the command line has the words or flags of `ask`, and not its name: before a command
// there are only flags of the program, and a word with a space is none.
bool is_short_for_ask(const CLI::App& app, const std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const size_t equals = word.find('=');
    if (!word.starts_with('-')) return word.find_first_of(" \t\n") != word.npos;
    const CLI::Option* flag = app.get_option_no_throw(word.substr(0, equals));
    if (flag == nullptr) return true;
    if (flag == app.get_help_ptr() || flag == app.get_version_ptr()) return false;
    if (flag->get_items_expected_max() > 0 && equals == word.npos) ++i;
  }
  return in_is_piped();
}

int run(int count, char** arguments) {
  CliContext context;
  CLI::App app(kAbout, "recurve");
  app.fallthrough();
  app.require_subcommand(1);
  app.failure_message([](const CLI::App* program, const CLI::Error& error) {
    return fmt::format("recurve: {}\nrecurve: --help after a command lists its flags\n",
                       usage_text(*program, error));
  });
  app.footer(kExitCodes);
  app.set_version_flag("-V,--version", version_line("recurve"),
                       "Print the version and the commit and exit");
  app.add_option("--server", context.server, "Address of the server [default: 127.0.0.1:50051]")
      ->type_name("HOST:PORT")
      ->envname("RECURVE_SERVER");
  add_tls_flags(app, &context.tls);
  const KeyFlag key(app);
  context.key = [&key] { return key.key(); };
  app.add_option("--timeout", context.timeout_seconds,
                 "Deadline of each call, in seconds; 0: none [default: 0]")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--json", context.json, "Print every message as one line of JSON");
  add_commands(app, context);
  add_page_flag(app);

  check_arguments(count, arguments);
  std::vector<std::string> words(arguments + 1, arguments + count);
  if (is_short_for_ask(app, words)) words.insert(words.begin(), "ask");
  std::ranges::reverse(words);  // as the parser takes them
  try {
    app.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  context.interrupts.start();
  try {
    return context.run();
  } catch (const ClientError& error) {
    const bool cancelled = error.kind() == ClientError::Kind::kCancelled;
    if (cancelled && context.interrupts.seen()) return kExitInterrupted;
    throw;
  }
}

int run_and_report(int count, char** arguments) {
  try {
    return run(count, arguments);
  } catch (const OutputClosed&) {
    return kExitOk;
  } catch (const ClientError& error) {
    print_error(error);
    return exit_code(error);
  } catch (const UsageError& error) {
    fmt::print(stderr, "recurve: {}\n", error.what());
    return kExitUsage;
  } catch (const std::exception& error) {
    fmt::print(stderr, "recurve: {}\n", error.what());
    return kExitFailed;
  }
}

}  // namespace
}  // namespace recurve

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);  // a failed write returns an error
  return recurve::run_and_report(argc, argv);
}
