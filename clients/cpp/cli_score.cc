#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <numbers>

#include "clients/cpp/cli.h"
#include "clients/cpp/cli_io.h"

namespace recurve {
namespace {

struct ScoreFlags {
  v1::ScoreOptions options;
  TextSource source;
  bool ids = false;
};

std::string totals(const v1::ScoreFinal& final) {
  const double nats = -final.sum_logprob();
  const auto tokens = static_cast<double>(final.scored_tokens());
  const auto bytes = static_cast<double>(final.text_bytes());
  const auto number = [](bool known, double value) {
    return known ? fmt::format("{:.6g}", value) : std::string("-");
  };
  return fmt::format(
      "tokens                   {}\n"
      "negative log-likelihood  {} nats\n"
      "perplexity               {}\n"
      "bits per byte            {}\n",
      final.scored_tokens(), number(true, nats), number(tokens > 0, std::exp(nats / tokens)),
      number(bytes > 0, nats / std::numbers::ln2 / bytes));
}

int score(CliContext& context, ScoreFlags& flags) {
  Client client = context.client();
  const std::string text = flags.source.read();
  if (context.json && !flags.options.has_top()) flags.options.set_top(0);
  const auto on_response = [&](const v1::ScoreResponse& response) {
    if (context.json) write_json_line(response);
  };
  Interrupts::Scope interrupt(context.interrupts);
  const CallOptions options = context.call_options(interrupt.canceller());
  const auto final = flags.ids ? client.score(flags.options, parse_ids(text, flags.source.name()),
                                              on_response, options)
                               : client.score(flags.options, text, on_response, options);
  if (!context.json) write_out(totals(final));
  return kExitOk;
}

}  // namespace

void add_score(CLI::App& app, CliContext& context) {
  CLI::App& command = *app.add_subcommand(
      "score",
      "How likely the model finds a text: tokens, negative log-likelihood, perplexity, bits per "
      "byte. With --json the log-probability of every token.");
  const auto flags = std::make_shared<ScoreFlags>();
  add_text_source(command, &flags->source, "The text");
  command.add_flag("--ids", flags->ids,
                   "The text is token ids, separated by spaces, line breaks or commas");
  command.add_option_function<int32_t>(
      "--top", [flags](const int32_t& top) { flags->options.set_top(top); },
      "With --json: so many of the most likely tokens at each place, 0 to 100 [default: 0]");
  command.add_flag_function(
      "--no-add-special-tokens",
      [flags](int64_t count) { flags->options.set_add_special_tokens(count == 0); },
      "Do not put the beginning-of-sequence id in front, as the rule of the model has it");
  command.add_flag_function(
      "--parse-special", [flags](int64_t count) { flags->options.set_parse_special(count > 0); },
      "Names of control tokens in the text (\"<s>\") become their ids; not for text by strangers");
  command.add_option_function<std::string>(
      "--request-id", [flags](const std::string& id) { flags->options.set_request_id(id); },
      "Name of the request, for 'recurve abort' and the server's log [default: the server makes "
      "one]");
  command.callback(
      [&context, flags] { context.run = [&context, flags] { return score(context, *flags); }; });
}

}  // namespace recurve
