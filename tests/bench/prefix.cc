// recurve-bench prefix: how long a prompt takes to its first token when it begins as another one
// did, and from its first token on; with --folder, where a server before has left that on a disk,
// too, or how long a start takes that finds --many of them there; or, with --trace, what share of a
// trace's tokens would be spared.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>

#include "kernels/check.h"
#include "server/engine/engine.h"
#include "server/prefix/prefix_cache.h"
#include "server/prefix/prefix_records.h"
#include "tests/bench/commands.h"
#include "tests/bench/disk_speed.h"
#include "tests/bench/report.h"
#include "tests/bench/sessions_disk.h"
#include "tests/bench/step_bench.h"

namespace recurve::bench {
namespace {

struct PrefixOptions {
  ModelOptions model{.model = "weights_tools/demo/xlstm-books"};
  std::vector<int> tokens = {1000, 10'000, 100'000};
  int rounds = 5;
  std::string folder;
  int many = 0;
  std::string trace;
  std::vector<int64_t> states = {300, 1000, 10'000};
};

// An engine that is stepped here, so that nothing else is in what is measured. folder: for states,
// or empty. most: tokens of a prompt.
class OneByOne {
 public:
  OneByOne(const Model& model, Backend& backend, const std::string& folder, int64_t most)
      : vocab_(static_cast<int32_t>(model.info().vocab)),
        store_(folder.empty() ? nullptr : new StateStore(open_folder(folder), {})),
        archive_(folder.empty() ? nullptr : new Archive(*store_)),
        engine_(model, backend, {.rows = vocab_, .usable = vocab_, .eos_ids = {}}, queue_, stats_,
                metrics_,
                {.slots = 2,
                 .rows_per_step = 256,
                 .pages = pages_for(model, 2, most + 1),
                 .sessions = {.archive = archive_.get(), .disk_bytes = kPlenty},
                 .prefix = {.bytes = int64_t{1} << 30, .disk_time = 1}}) {}

  // Milliseconds to the first token of a prompt of so many; another text for each seed. Until all
  // that is to be written has been, nothing else begins.
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
    double took = 0;
    for (bool ended = false; !ended;) {
      engine_.step();
      while (engine_.copying()) queue_.wait(std::nullopt);
      const TokenStream::Gathered news = stream->take();
      if (!news.ending) continue;
      ended = true;
      took = 1e3 * seconds_between(began, Clock::now());
      *spared = news.ending->prefix.tokens;
    }
    do {
      if (archive_ != nullptr) archive_->wait();
      engine_.step();
    } while (archive_ != nullptr && archive_->working());
    return took;
  }

 private:
  const int32_t vocab_;
  const std::unique_ptr<StateStore> store_;
  const std::unique_ptr<Archive> archive_;
  AdmissionQueue queue_{4};
  PublishedStats stats_;
  EngineMetrics metrics_;
  Engine engine_;
};

void time_hits(const PrefixOptions& o, Report& report) {
  o.model.check("prefix");
  const auto backend = o.model.backend();
  const auto model = o.model.load(*backend);
  std::optional<BenchFolder> folder;
  if (!o.folder.empty()) folder.emplace(o.folder);
  const std::string path = folder ? folder->path().string() : "";
  const int most = std::ranges::max(o.tokens);
  std::optional<OneByOne> engine(std::in_place, *model, *backend, path, most);
  uint64_t seed = 1;
  for (const int tokens : o.tokens) {
    std::vector<double> cold, hit, restarted;
    int64_t spared = 0, from_disk = 0, none = 0;
    for (int round = 0; round < o.rounds; ++round) {
      cold.push_back(engine->ask(tokens, ++seed, &none));
      hit.push_back(engine->ask(tokens, seed, &spared));
      if (!folder) continue;
      engine.reset();
      drop_from_cache(folder->path());
      engine.emplace(*model, *backend, path, most);
      restarted.push_back(engine->ask(tokens, seed, &from_disk));
    }
    nlohmann::ordered_json row = {{"bench", "prefix"},     {"prompt", tokens},
                                  {"spared", spared},      {"cold ms", median(cold)},
                                  {"hit ms", median(hit)}, {"x", median(cold) / median(hit)}};
    if (folder) {
      row["spared after a restart"] = from_disk;
      row["cold disk ms"] = median(restarted);
    }
    report.add(row);
  }
}

// A start that finds so many states of prompts, of 1 KiB each.
void time_start(const PrefixOptions& o, Report& report) {
  constexpr int kAtOnce = 1000;
  const BenchFolder folder(o.folder);
  const auto backend = make_backend("cpu", 1);
  const auto stream = backend->make_stream();
  StatePool pool(*backend, {.arrays = {{.name = "x", .shape = {256}}}}, 1, *stream);
  {
    StateStore store(open_folder(folder.path().string()), {});
    const StoredPrefixes hashes(64, "");
    const StateImage image = make_image(pool.layout()).image;
    for (int32_t at = 0; at < o.many;) {
      std::vector<StateStore::Change> changes;
      for (int i = 0; i < kAtOnce && at < o.many; ++i, ++at) {
        const std::vector<int32_t> ids(64, at);
        StateHeader header{.chunk = 64, .id = store.new_id(), .position = 64, .answer_ids = ids};
        header.layout = pool.layout();
        changes.push_back({.key = prefix_record_key({"default", hashes.hashes_of(ids)[0]}),
                           .text = prefix_record_text({.tokens = 64, .gain = 64}, ""),
                           .states = {header.id},
                           .state = StateStore::NewState{header, image}});
      }
      for (const auto& outcome : store.commit(changes)) CHECK(outcome.error.empty());
    }
  }
  drop_from_cache(folder.path());
  const auto began = Clock::now();
  StateStore store(open_folder(folder.path().string()), {});
  Archive archive(store);
  StateCache states(*backend, pool, int64_t{1} << 30, &archive);
  const PrefixCache cache(states, pool, 64, {.bytes = int64_t{1} << 30}, {.archive = &archive});
  const double took = seconds_between(began, Clock::now());
  CHECK(cache.counts().disk_states == o.many);
  report.add({{"bench", "prefix start"}, {"states", o.many}, {"s", took}, {"target", "<= 2"}});
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
  constexpr int64_t kState = int64_t{1} << 30;  // compared to which the tree weighs nothing
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
      "prefix",
      "Measure prompts with a cached prefix: time to the first token, or the hits of a "
      "trace");
  add_model_options(*prefix, o->model);
  prefix->add_option("--tokens", o->tokens, "Lengths of prompts")->capture_default_str();
  prefix->add_option("--rounds", o->rounds, "Prompts of each length")->capture_default_str();
  CLI::Option* folder = prefix->add_option(
      "--folder", o->folder, "Also store states on disk, in this folder; the files are deleted");
  prefix->add_option("--many", o->many, "Only measure a start with this many states in the folder")
      ->needs(folder);
  prefix->add_option(
      "--trace", o->trace,
      "Count the hits of a trace instead: JSON lines with hash_ids, one for 512 tokens");
  prefix->add_option("--states", o->states, "Capacity in states, with --trace")
      ->capture_default_str();
  prefix->callback([o, &json] {
    Report report(json);
    if (!o->trace.empty()) return replay(*o, report);
    o->many > 0 ? time_start(*o, report) : time_hits(*o, report);
  });
}

}  // namespace recurve::bench
