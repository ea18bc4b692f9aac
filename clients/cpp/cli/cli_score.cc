#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <optional>
#include <utility>

#include "clients/cpp/cli/cli.h"
#include "clients/cpp/cli/cli_io.h"
#include "clients/cpp/cli/cli_request_flags.h"

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

// A line on a terminal that shows the progress, rewritten a few times a second.
class ProgressLine {
 public:
  explicit ProgressLine(bool shown) : shown_(shown && error_is_terminal()) {}
  ~ProgressLine() { clear(); }
  void clear() {
    if (std::exchange(written_, false)) fmt::print(stderr, "\r\x1b[K");
  }
  void show(const v1::ScoreProgress& progress) {
    const auto now = std::chrono::steady_clock::now();
    if (!shown_ || now - last_ < std::chrono::milliseconds(200)) return;
    last_ = now;
    written_ = true;
    const double seconds = std::chrono::duration<double>(now - began_).count();
    const auto tokens = static_cast<double>(progress.scored_tokens());
    fmt::print(stderr, "\r\x1b[K{} tokens, {:.0f} tok/s, perplexity {:.6g}",
               progress.scored_tokens(), tokens / seconds,
               std::exp(-progress.sum_logprob() / tokens));
    std::fflush(stderr);
  }

 private:
  const bool shown_;
  bool written_ = false;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_ = {};
};

int score(CliContext& context, ScoreFlags& flags) {
  Client client = context.client();
  if (context.json && !flags.options.has_top()) flags.options.set_top(0);
  ProgressLine line(!context.json);
  const auto on_response = [&](const v1::ScoreResponse& response) {
    if (context.json) write_json_line(response);
    if (response.has_progress()) line.show(response.progress());
  };
  // Ids come whole, text as it is read.
  const std::vector<int32_t> ids =
      flags.ids ? parse_ids(flags.source.read(), flags.source.name()) : std::vector<int32_t>();
  std::optional<PieceReader> reader;
  if (!flags.ids && !flags.source.text) reader.emplace(flags.source.path());
  Interrupts::Scope interrupt(context.interrupts);
  const CallOptions options = context.call_options(interrupt.canceller());
  v1::ScoreFinal final;
  if (flags.ids) {
    final = client.score(flags.options, ids, on_response, options);
  } else if (flags.source.text) {
    final = client.score(flags.options, *flags.source.text, on_response, options);
  } else {
    const auto next = [&](std::stop_token stop, std::string* piece) {
      return reader->next(stop, piece);
    };
    final = client.score(flags.options, next, on_response, options);
  }
  line.clear();
  if (!context.json) write_out(totals(final));
  return kExitOk;
}

}  // namespace

void add_score(CLI::App& app, CliContext& context) {
  CLI::App& command = *app.add_subcommand(
      "score",
      "Score a text of any length: tokens, negative log-likelihood, perplexity, bits per byte. "
      "With --json the log-probability of every token.");
  const auto flags = std::make_shared<ScoreFlags>();
  add_text_source(command, &flags->source, "The text");
  command.add_flag("--ids", flags->ids,
                   "Read the text as token ids, separated by spaces, line breaks or commas");
  command.add_option_function<int32_t>(
      "--top", [flags](const int32_t& top) { flags->options.set_top(top); },
      "With --json: print this many most likely tokens at each position, 0 to 100 [default: 0]");
  add_special_tokens_flag(command, &flags->options);
  add_parse_special_flag(command, &flags->options);
  add_model_flag(command, &flags->options);
  add_adapter_flag(command, &flags->options);
  command.add_option_function<std::string>(
      "--request-id", [flags](const std::string& id) { flags->options.set_request_id(id); },
      "Name of the request, for 'recurve abort' and the server's log [default: chosen by the "
      "server]");
  command.callback(
      [&context, flags] { context.run = [&context, flags] { return score(context, *flags); }; });
}

}  // namespace recurve
