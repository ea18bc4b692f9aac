#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "clients/cpp/cli/cli.h"
#include "clients/cpp/cli/cli_io.h"
#include "clients/cpp/cli/cli_request_flags.h"

// tokenize and detokenize.
namespace recurve {
namespace {

struct TokenizeFlags {
  v1::TokenizeRequest request;
  TextSource source;
};

// Printable ASCII as it is, all else as \n, \t, \\ and \xHH.
std::string escaped(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    if (c == '\n') {
      text += "\\n";
    } else if (c == '\t') {
      text += "\\t";
    } else if (c == '\\') {
      text += "\\\\";
    } else if (c >= 0x20 && c < 0x7f) {
      text += c;
    } else {
      text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return text;
}

int tokenize(CliContext& context, TokenizeFlags& flags) {
  Client client = context.client();
  flags.request.set_text(flags.source.read());
  check_utf8(flags.request.text(), flags.source.name());
  Interrupts::Scope interrupt(context.interrupts);
  const auto response = client.tokenize(flags.request, context.call_options(interrupt.canceller()));
  if (context.json) {
    write_json_line(response);
  } else if (flags.request.with_bytes()) {
    for (int i = 0; i < std::min(response.ids_size(), response.token_bytes_size()); ++i) {
      write_out(fmt::format("{}\t{}\n", response.ids(i), escaped(response.token_bytes(i))));
    }
  } else {
    write_out(fmt::format("{}\n", fmt::join(response.ids(), " ")));
  }
  return kExitOk;
}

struct DetokenizeFlags {
  std::vector<std::string> ids;
  std::string file;
  bool continued = false;
};

int detokenize(CliContext& context, const DetokenizeFlags& flags) {
  Client client = context.client();
  const TextSource source{flags.ids.empty()
                              ? std::nullopt
                              : std::optional(fmt::format("{}", fmt::join(flags.ids, " "))),
                          flags.file};
  v1::DetokenizeRequest request;
  request.set_continued(flags.continued);
  for (const int32_t id : parse_ids(source.read(), flags.ids.empty() ? source.name() : "ids")) {
    request.add_ids(id);
  }
  Interrupts::Scope interrupt(context.interrupts);
  const auto response = client.detokenize(request, context.call_options(interrupt.canceller()));
  if (context.json) {
    write_json_line(response);
  } else {
    write_out(response.text() + (out_is_terminal() ? "\n" : ""));
  }
  return kExitOk;
}

}  // namespace

void add_tokenize(CLI::App& app, CliContext& context) {
  CLI::App& command = *app.add_subcommand(
      "tokenize", "Convert text to token ids as generate does: one line, separated by spaces");
  const auto flags = std::make_shared<TokenizeFlags>();
  add_text_source(command, &flags->source, "The text");
  add_special_tokens_flag(command, &flags->request);
  add_parse_special_flag(command, &flags->request);
  add_model_flag(command, &flags->request);
  command.add_flag_function(
      "--bytes", [flags](int64_t count) { flags->request.set_with_bytes(count > 0); },
      "Print a line for each token: its id, a tab, and its bytes, with \\xHH if not printable "
      "ASCII");
  command.callback(
      [&context, flags] { context.run = [&context, flags] { return tokenize(context, *flags); }; });
}

void add_detokenize(CLI::App& app, CliContext& context) {
  CLI::App& command = *app.add_subcommand("detokenize", "Convert token ids to text");
  const auto flags = std::make_shared<DetokenizeFlags>();
  auto* ids = command.add_option(
      "ids", flags->ids, "Token ids, separated by spaces or commas [default: standard input]");
  command.add_option("--file", flags->file, "Read the ids from this file; -: standard input")
      ->type_name("PATH")
      ->excludes(ids);
  command.add_flag("--continued", flags->continued,
                   "Treat the ids as a continuation: a leading space is printed");
  command.callback([&context, flags] {
    context.run = [&context, flags] { return detokenize(context, *flags); };
  });
}

}  // namespace recurve
