// recurve-bench prefix: how long a prompt takes to its first token when it begins as another one
// did, and from its first token on; or, with --trace, what share of a trace's tokens would be
// spared.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "server/engine/engine.h"
#include "server/prefix/prefix_index.h"
#include "tests/bench/commands.h"
#include "tests/bench/report.h"
#include "tests/bench/step_bench.h"

namespace recurve::bench {
namespace {

struct PrefixOptions {
  ModelOptions model{.model = "weights_tools/demo/xlstm-books"};
  std::vector<int> tokens = {1000, 10'000, 100'000};
  int rounds = 5;
  std::string trace;
  std::vector<int64_t> states = {300, 1000, 10'000};
};

// An engine that is stepped here, so that nothing else is in what is measured.
class OneByOne {
 public:
  OneByOne(const Model& model, Backend& backend)
      : vocab_(static_cast<int32_t>(model.info().vocab)),
        engine_(model, backend, {.rows = vocab_, .usable = vocab_, .eos_ids = {}}, queue_, stats_,
                metrics_,
                {.slots = 2, .rows_per_step = 256, .prefix = {.bytes = int64_t{1} << 30}}) {}

  // Milliseconds to the first token of a prompt of so many; another text for each seed.
  double ask(int tokens, uint64_t seed, int64_t* spared) {
    Request request{.streams = {std::make_shared<TokenStream>()}};
    for (int i = 0; i < tokens; ++i) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      request.prompt.ids.push_back(static_cast<int32_t>((seed >> 33) % vocab_));
    }
    request.sampling.max_tokens = 1;
    const auto stream = request.streams.front();
    const auto began = Clock::now();
    queue_.push(std::move(request));
    while (true) {
      engine_.step();
      while (engine_.copying()) queue_.wait(std::nullopt);
      const TokenStream::Gathered news = stream->take();
      if (!news.ending) continue;
      *spared = news.ending->prefix.tokens;
      return 1e3 * seconds_between(began, Clock::now());
    }
  }

 private:
  const int32_t vocab_;
  AdmissionQueue queue_{4};
  EngineStats stats_;
  EngineMetrics metrics_;
  Engine engine_;
};

void time_hits(const PrefixOptions& o, Report& report) {
  o.model.check("prefix");
  const auto backend = o.model.backend();
  const auto model = o.model.load(*backend);
  OneByOne engine(*model, *backend);
  uint64_t seed = 1;
  for (const int tokens : o.tokens) {
    std::vector<double> cold, hit;
    int64_t spared = 0, none = 0;
    for (int round = 0; round < o.rounds; ++round) {
      cold.push_back(engine.ask(tokens, ++seed, &none));
      hit.push_back(engine.ask(tokens, seed, &spared));
    }
    report.add({{"bench", "prefix"},
                {"prompt", tokens},
                {"spared", spared},
                {"cold ms", median(cold)},
                {"hit ms", median(hit)},
                {"x", median(cold) / median(hit)}});
  }
}

constexpr int64_t kBlock = 512;  // tokens of a trace's blocks

struct TracePrompt {
  int64_t tokens = 0;
  std::vector<int32_t> blocks = {};  // the last one is what is left, at least one token
};

// Of a trace as Mooncake's are: JSON lines with "input_length" and "hash_ids", one for each block.
std::vector<TracePrompt> prompts_of(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::vector<TracePrompt> prompts;
  for (std::string line; std::getline(file, line);) {
    const auto row = nlohmann::json::parse(line);
    TracePrompt& prompt = prompts.emplace_back();
    prompt.tokens = row.at("input_length");
    prompt.blocks = row.at("hash_ids").get<std::vector<int32_t>>();
  }
  return prompts;
}

// A block stands for a token, with a grid of one.
void replay(const PrefixOptions& o, Report& report) {
  const auto prompts = prompts_of(o.trace);
  constexpr int64_t kState = int64_t{1} << 30;  // beside which the tree weighs nothing
  for (const int64_t states : o.states) {
    PrefixIndex index({.bytes = states * kState + kState / 2, .state_bytes = kState});
    const StateImage image = std::make_shared<const std::vector<StatePiece>>();
    int64_t all = 0, spared = 0, replayed = 0, lost = 0;
    for (const auto& [tokens, blocks] : prompts) {
      const PrefixIndex::Found found = index.look(0, blocks, true);
      all += tokens;
      spared += kBlock * found.tokens;
      replayed += kBlock * (found.seen - found.tokens - found.lost);
      lost += kBlock * found.lost;
      for (const int64_t at : found.points) {
        const auto head = std::span(blocks).first(static_cast<size_t>(at));
        if (index.make_room(0, head)) index.keep(0, head, image);
      }
    }
    const auto share = [&](int64_t of) {
      return 100.0 * static_cast<double>(of) / static_cast<double>(all);
    };
    report.add({{"bench", "prefix trace"},
                {"states", states},
                {"prompts", prompts.size()},
                {"spared %", share(spared)},
                {"replayed %", share(replayed)},
                {"lost %", share(lost)},
                {"evicted", index.counts().evicted}});
  }
}

}  // namespace

void add_prefix(CLI::App& app, const bool& json) {
  auto o = std::make_shared<PrefixOptions>();
  CLI::App* prefix = app.add_subcommand(
      "prefix", "Prompts that begin as others did: time to the first token, or a trace's hits");
  add_model_options(*prefix, o->model);
  prefix->add_option("--tokens", o->tokens, "Lengths of prompts")->capture_default_str();
  prefix->add_option("--rounds", o->rounds, "Prompts of each length")->capture_default_str();
  prefix->add_option(
      "--trace", o->trace,
      "Count the hits of a trace instead: JSON lines with hash_ids, one a 512 tokens");
  prefix->add_option("--states", o->states, "That there is room for, with --trace")
      ->capture_default_str();
  prefix->callback([o, &json] {
    Report report(json);
    o->trace.empty() ? time_hits(*o, report) : replay(*o, report);
  });
}

}  // namespace recurve::bench
