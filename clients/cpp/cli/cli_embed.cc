#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <string_view>

#include "clients/cpp/cli/cli.h"
#include "clients/cpp/cli/cli_io.h"
#include "clients/cpp/cli/cli_request_flags.h"

namespace recurve {
namespace {

struct EmbedFlags {
  v1::EmbedRequest request;
  TextSource source;
  bool lines = false;
};

// Each line without its end; the last may have none.
void add_lines(std::string_view text, v1::EmbedRequest* request) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    request->add_inputs()->set_text(std::string(text.substr(0, end)));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
}

int embed(CliContext& context, EmbedFlags& flags) {
  Client client = context.client();
  const std::string text = flags.source.read();
  check_utf8(text, flags.source.name());
  if (flags.lines) {
    add_lines(text, &flags.request);
  } else {
    flags.request.add_inputs()->set_text(text);
  }
  const auto on_response = [&](const v1::EmbedResponse& response) {
    if (context.json) return write_json_line(response);
    if (!response.has_embedding()) return;
    write_out(fmt::format("{}\n", fmt::join(response.embedding().values(), " ")));
  };
  Interrupts::Scope interrupt(context.interrupts);
  client.embed(flags.request, on_response, context.call_options(interrupt.canceller()));
  return kExitOk;
}

}  // namespace

void add_embed(CLI::App& app, CliContext& context) {
  CLI::App& command = *app.add_subcommand(
      "embed", "Compute the embedding of a text: one line of numbers, separated by spaces");
  const auto flags = std::make_shared<EmbedFlags>();
  add_text_source(command, &flags->source, "The text");
  command.add_flag("--lines", flags->lines, "Embed each line of the text, at most 2048");
  command
      .add_option_function<std::string>(
          "--pooling",
          [flags](const std::string& name) {
            flags->request.set_pooling(name == "mean" ? v1::POOLING_MEAN : v1::POOLING_LAST);
          },
          "Use the hidden state of the last token, or the mean of all [default: last]")
      ->check(CLI::IsMember({"last", "mean"}));
  command.add_option_function<int32_t>(
      "--dimensions", [flags](const int32_t& count) { flags->request.set_dimensions(count); },
      "Number of dimensions, the first ones [default: all of the model]");
  add_special_tokens_flag(command, &flags->request);
  add_model_flag(command, &flags->request);
  add_adapter_flag(command, &flags->request);
  command.callback(
      [&context, flags] { context.run = [&context, flags] { return embed(context, *flags); }; });
}

}  // namespace recurve
