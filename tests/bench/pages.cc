// recurve-bench pages: sessions of a model with attention, whose states grow: what a fork and a
// turn cost after many tokens, with --folder what a turn of a durable session writes, and what is
// answered where pages do not suffice.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/commands.h"
#include "tests/bench/report.h"
#include "tests/bench/session_server.h"
#include "tests/bench/step_bench.h"

namespace recurve::bench {
namespace {

struct PagesOptions {
  ModelOptions model{.model = "weights_tools/demo/qwen35-books"};
  std::vector<int> tokens = {128, 32'768};
  std::string folder;
  int rounds = 9, sessions = 200, slots = 16, answer = 64;
};

constexpr int kTurn = 32;  // tokens of a prompt

std::vector<int32_t> prompt_of(int tokens, int seed) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < tokens; ++i) prompt.push_back(2 + (7 * i + 31 * seed) % 251);
  return prompt;
}

double seconds_of(SessionServer& server, SessionCommand command) {
  const auto began = Clock::now();
  server.run(std::move(command));
  return seconds_between(began, Clock::now());
}

// Of a session of so many tokens: its forks, and the first tokens of turns in forks of it. Each is
// the shortest of all rounds.
void measure_length(const PagesOptions& o, const Model& model, Backend& backend, int tokens,
                    Report& report) {
  using Kind = SessionCommand::Kind;
  const int64_t most = tokens + 4 * kTurn;
  const auto pages = static_cast<int32_t>(4 * StateLayout::pages(most));
  SessionServer server(model, backend, nullptr, 4, PageLimits{pages, most});
  server.open("s", Durability::kNone);
  const double first = server.ask({{.session = "s", .prompt = prompt_of(tokens, 0)}}).front().first;
  double fork = 1e9, turn = 1e9;
  for (int i = 0; i < o.rounds; ++i) {
    fork = std::min(fork, seconds_of(server, {.kind = Kind::kFork, .name = "s", .other = "f"}));
    turn =
        std::min(turn, server.ask({{.session = "f", .prompt = prompt_of(kTurn, i)}}).front().first);
    server.run({.kind = Kind::kClose, .name = "f"});
  }
  report.add({{"bench", "pages"},
              {"what", "a fork and a turn"},
              {"tokens", tokens},
              {"prompt_ms", 1e3 * first},
              {"fork_ms", 1e3 * fork},
              {"turn_first_token_ms", 1e3 * turn}});
}

// What turns of a durable session that has absorbed so many tokens, and stores all of them, write
// after a restart, next to what is new of its state: what does not grow, and the pages from the
// first one that was not full.
void measure_durable(const PagesOptions& o, const Model& model, Backend& backend, int tokens,
                     Report& report) {
  const BenchFolder folder(o.folder);
  const int64_t most = tokens + (o.rounds + 2) * 2 * kTurn;
  const auto start = [&] {
    const auto pages = static_cast<int32_t>(StateLayout::pages(most));
    return std::make_unique<SessionServer>(model, backend,
                                           open_folder((folder.path() / "states").string()), 1,
                                           PageLimits{.pages = pages, .most_tokens = most});
  };
  auto server = start();
  server->run({.kind = SessionCommand::Kind::kOpen,
               .name = "s",
               .durability = Durability::kLocal,
               .rewind_tokens = kMostRewindTokens});
  server->ask({{.session = "s", .prompt = prompt_of(tokens, 0)}});
  const int64_t whole = server->written();
  server.reset();
  server = start();
  const StateLayout layout = model.state_layout();
  int64_t position = tokens, written = 0, is_new = 0;
  double seconds = 0;
  for (int i = 0; i < o.rounds; ++i) {
    const int64_t before = server->written();
    const SessionServer::Turn turn{.session = "s", .tokens = kTurn, .prompt = prompt_of(kTurn, i)};
    seconds += server->ask({turn})[0].last;
    written += server->written() - before;
    const int64_t full = position / kPageTokens;
    position += 2 * kTurn;  // its answer but the last token, and the last one of the answer before
    is_new += static_cast<int64_t>(layout.bytes(position)) -
              full * static_cast<int64_t>(layout.page_bytes());
  }
  report.add({{"bench", "pages"},
              {"what", "a turn of a durable session"},
              {"tokens", tokens},
              {"state_bytes", static_cast<int64_t>(layout.bytes(tokens))},
              {"first_turn_wrote_bytes", whole},
              {"turn_wrote_bytes", written / o.rounds},
              {"new_bytes", is_new / o.rounds},
              {"written_per_new", static_cast<double>(written) / static_cast<double>(is_new)},
              {"turn_ms", 1e3 * seconds / o.rounds}});
}

// All sessions at once, with pages for all, and for a third.
void measure_load(const PagesOptions& o, const Model& model, Backend& backend, Report& report) {
  const int64_t most = kTurn + o.answer + 1;
  const auto all = static_cast<int32_t>(o.slots * StateLayout::pages(most));
  double full = 0;
  for (const int part : {1, 3}) {
    SessionServer server(model, backend, nullptr, o.slots, PageLimits{all / part, most});
    std::vector<SessionServer::Turn> turns;
    for (int s = 0; s < o.sessions; ++s) {
      const std::string name = fmt::format("s{}", s);
      server.open(name, Durability::kNone);
      turns.push_back({.session = name, .tokens = o.answer, .prompt = prompt_of(kTurn, s)});
    }
    const std::vector<SessionServer::Times> times = server.ask(std::move(turns));
    const double last = std::ranges::max(times, {}, &SessionServer::Times::last).last;
    const double rate = o.sessions * o.answer / last;
    if (part == 1) full = rate;
    report.add({{"bench", "pages"},
                {"what", part == 1 ? "pages for all slots" : "pages for a third"},
                {"pages", all / part},
                {"tok_per_s", rate},
                {"percent", 100 * rate / full},
                {"preemptions", server.preemptions()}});
  }
}

void run(const PagesOptions& o, bool json) {
  o.model.check("pages");
  const auto backend = o.model.backend();
  const auto model = o.model.load(*backend);
  Report report(json);
  for (const int tokens : o.tokens) measure_length(o, *model, *backend, tokens, report);
  if (!o.folder.empty()) {
    Report durable(json);
    for (const int tokens : o.tokens) measure_durable(o, *model, *backend, tokens, durable);
  }
  Report load(json);
  measure_load(o, *model, *backend, load);
}

}  // namespace

void add_pages(CLI::App& app, const bool& json) {
  auto o = std::make_shared<PagesOptions>();
  CLI::App* pages = app.add_subcommand("pages",
                                       "Measure sessions whose states grow: forks, turns, bytes "
                                       "written by durable ones, and more sessions than pages");
  add_model_options(*pages, o->model);
  pages->add_option("--tokens", o->tokens, "Tokens of the session, e.g. 128,32768")->delimiter(',');
  pages->add_option("--folder", o->folder,
                    "Write durable sessions in this folder; the files are deleted");
  pages->add_option("--rounds", o->rounds, "Forks and turns of each session");
  pages->add_option("--sessions", o->sessions, "Concurrent sessions")->check(CLI::Range(1, 256));
  pages->add_option("--slots", o->slots, "Slots of the engine");
  pages->add_option("--answer", o->answer, "Tokens of each session's answer");
  pages->callback([o, &json] { run(*o, json); });
}

}  // namespace recurve::bench
