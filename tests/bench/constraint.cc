// recurve-bench constraint: what answers that are kept to a JSON Schema cost: their own rate beside
// free ones', and the steps of others that share the batch with them while constraints compile.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "server/constraint/compiler.h"
#include "server/engine/engine.h"
#include "server/text/tokenizer.h"
#include "tests/bench/commands.h"
#include "tests/bench/report.h"
#include "tests/bench/step_bench.h"

namespace recurve::bench {
namespace {

using Constraints = std::vector<std::shared_ptr<const Constraint>>;

struct ConstraintOptions {
  ModelOptions model{.model = "weights_tools/demo/xlstm-books"};
  std::string tokenizer;
  int ids = 0, streams = 16;
  double seconds = 15;
};

// A person, as programs ask for one. `number`: of several that are different.
std::string schema(int number) {
  return fmt::format(
      R"({{"type":"object","properties":{{"name_{}":{{"type":"string","maxLength":40}},)"
      R"("age":{{"type":"integer","minimum":0,"maximum":120}},"kind":{{"enum":["cat","dog","bird"]}},)"
      R"("born":{{"type":"string","format":"date"}},"tags":{{"type":"array","items":{{"type":"string",)"
      R"("maxLength":20}},"maxItems":4}},"home":{{"type":"object","properties":{{"street":{{"type":)"
      R"("string"}},"number":{{"type":"integer"}}}},"required":["street","number"]}}}},)"
      R"("required":["name_{}","age","kind","born","tags","home"]}})",
      number, number);
}

// The texts of a tokenizer's ids, and beyond them each is two earlier ones, as merges make them.
TokenTexts texts_of(const Tokenizer& tokenizer, int ids) {
  TokenTexts texts;
  for (int32_t id = 0; id < std::min<int32_t>(tokenizer.size(), ids); ++id) {
    texts.emplace_back(tokenizer.is_special(id) ? std::string_view() : tokenizer.token_bytes(id));
  }
  std::mt19937 random(1);
  while (static_cast<int>(texts.size()) < ids) {
    const std::string& one = texts[random() % texts.size()];
    const std::string& other = texts[random() % texts.size()];
    if (one.size() + other.size() <= 16) texts.push_back(one + other);
  }
  return texts;
}

std::unique_ptr<const Model> load(const ConstraintOptions& o, Backend& backend) {
  if (o.ids == 0) return o.model.load(backend);
  std::ifstream in(std::filesystem::path(o.model.model) / "config.json");
  nlohmann::json config = nlohmann::json::parse(in);
  config["vocab_size"] = o.ids;
  const auto file = std::filesystem::temp_directory_path() / fmt::format("bench-{}.json", getpid());
  std::ofstream(file) << config;
  ModelOptions random = o.model;
  random.random = true;
  random.config = file;
  auto model = random.load(backend);
  std::filesystem::remove(file);
  return model;
}

// An engine on its thread, and streams that ask again as soon as they have their answer; each keeps
// to its constraint, or to none. The times of the first one's tokens are those of the steps.
class Asking {
 public:
  Asking(const Model& model, Backend& backend, int32_t eos, const Constraints& constraints,
         int max_tokens)
      : constraints_(constraints),
        max_tokens_(max_tokens),
        queue_(static_cast<int>(constraints.size())),
        engine_(model, backend,
                {.rows = static_cast<int32_t>(model.info().vocab),
                 .usable = static_cast<int32_t>(model.info().vocab),
                 .eos_ids = {eos}},
                queue_, stats_, metrics_, {.slots = static_cast<int>(constraints.size())}) {
    streams_.resize(constraints.size());
    for (size_t s = 0; s < streams_.size(); ++s) ask(s);
    thread_ = std::thread([this] { engine_.run(); });
  }
  ~Asking() {
    engine_.abandon();
    thread_.join();
  }

  // Reads for so long; tokens a second.
  template <typename Meanwhile>
  double rate(double seconds, const Meanwhile& meanwhile) {
    const int64_t before = read();
    const auto began = Clock::now();
    measures_ = true;
    while (seconds_between(began, Clock::now()) < seconds) {
      meanwhile();
      read();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    measures_ = false;
    return static_cast<double>(read() - before) / seconds_between(began, Clock::now());
  }
  double rate(double seconds) {
    return rate(seconds, [] {});
  }
  // Seconds between the first stream's tokens. Not while it measures.
  std::vector<double> steps() const { return steps_; }
  double mean_answer() const {
    return static_cast<double>(tokens_of_ended_) / static_cast<double>(ended_);
  }
  int answers() const { return ended_; }

 private:
  void ask(size_t s) {
    auto& stream = streams_[s] = std::make_shared<TokenStream>();
    if (s == 0) stream->on_ready([this] { note_step(); });
    Request request{.prompt = {1}, .streams = {stream}};
    request.sampling.seed = seed_++;
    request.sampling.max_tokens = max_tokens_;
    request.sampling.ignore_eos = constraints_[s] == nullptr;
    request.sampling.constraint = constraints_[s];
    queue_.push(std::move(request));
  }
  // On the engine's thread.
  void note_step() {
    const Clock::time_point now = Clock::now();
    if (measures_ && last_step_) steps_.push_back(seconds_between(*last_step_, now));
    last_step_ = measures_ ? std::optional(now) : std::nullopt;
  }
  int64_t read() {
    for (size_t s = 0; s < streams_.size(); ++s) {
      const TokenStream::Gathered gathered = streams_[s]->take();
      tokens_ += std::ssize(gathered.tokens);
      if (!gathered.ending) continue;
      ++ended_;
      tokens_of_ended_ += gathered.ending->generated_tokens;
      ask(s);
    }
    return tokens_;
  }

  const Constraints constraints_;
  const int max_tokens_;
  AdmissionQueue queue_;
  EngineStats stats_;
  EngineMetrics metrics_;
  Engine engine_;
  std::vector<std::shared_ptr<TokenStream>> streams_;
  std::thread thread_;
  uint64_t seed_ = 0;
  int64_t tokens_ = 0, tokens_of_ended_ = 0;
  int ended_ = 0;
  std::atomic<bool> measures_{false};
  std::optional<Clock::time_point> last_step_;
  std::vector<double> steps_;
};

// A compiler that one client asks for a schema that is new as soon as its last is there; beside it
// another one may keep the queue full of its own.
class Compiling {
 public:
  Compiling(const TokenTexts& texts, bool full)
      : compiler_([texts] { return texts; }, {.most_of_one = kWaiting}),
        waiters_(full ? kWaiting : 0) {}

  void ask() {
    for (auto& waiter : waiters_) {
      if (given_ >= kWaiting && !waiter.outcome()) continue;
      ask_for(kFilling, &waiter);
    }
    if (asked_ && !one_.outcome()) return;
    if (asked_) waits_.push_back(seconds_between(*asked_, Clock::now()));
    asked_ = Clock::now();
    ask_for(kAsking, &one_);
  }
  ConstraintCompiler::Counts counts() const { return compiler_.counts(); }
  // Seconds, of the one that asks; the last may still be waiting.
  std::vector<double> waits() const {
    std::vector<double> all = waits_;
    const double last = asked_ ? seconds_between(*asked_, Clock::now()) : 0;
    if (all.empty() || last > *std::ranges::max_element(all)) all.push_back(last);
    return all;
  }

 private:
  static constexpr int kWaiting = 32;
  static constexpr uint64_t kFilling = 0, kAsking = 1;  // clients

  void ask_for(uint64_t client, ConstraintCompiler::Waiter* waiter) {
    waiter->forget();
    compiler_.compile(
        {ConstraintText::Form::kJsonSchema, schema(++given_)}, client, [] {}, waiter);
  }

  ConstraintCompiler compiler_;
  std::vector<ConstraintCompiler::Waiter> waiters_;
  ConstraintCompiler::Waiter one_;
  std::optional<Clock::time_point> asked_;
  std::vector<double> waits_;
  int given_ = 0;
};

void run(const ConstraintOptions& o, bool json) {
  const auto backend = o.model.backend();
  const auto model = load(o, *backend);
  const auto ids = static_cast<int>(model->info().vocab);
  const auto tokenizer = load_tokenizer(o.tokenizer.empty() ? o.model.model : o.tokenizer);
  const int32_t eos = tokenizer->eos_id().value_or(0);
  TokenTexts texts = texts_of(*tokenizer, ids);
  texts.at(static_cast<size_t>(eos)).clear();
  const auto library = make_constraint_library(texts);
  const auto began = Clock::now();
  const auto constraint = library->compile({ConstraintText::Form::kJsonSchema, schema(0)}, {});
  const double compiled = seconds_between(began, Clock::now());
  const auto count = static_cast<size_t>(o.streams);
  Report report(json);
  const auto row = [&](const std::string& what, double value, const char* unit,
                       const char* target) {
    report.add({{"bench", "constraint"},
                {"ids", ids},
                {"what", what},
                {"value", value},
                {"unit", unit},
                {"target", target}});
  };
  row("a schema compiled", 1e3 * compiled, "ms", "");

  constexpr int kMostTokens = 400;
  double kept = 0, answer = kMostTokens;
  {
    Asking streams(*model, *backend, eos, Constraints(count, constraint), kMostTokens);
    streams.rate(o.seconds / 8);
    kept = streams.rate(o.seconds);
    if (streams.answers() > 0) answer = streams.mean_answer();
  }
  std::vector<double> alone;
  double free = 0;
  {
    Asking streams(*model, *backend, eos, Constraints(count, nullptr),
                   static_cast<int>(answer) + 1);
    streams.rate(o.seconds / 8);
    free = streams.rate(o.seconds);
    alone = streams.steps();
  }
  row(fmt::format("{} free streams, answers of {:.0f}", o.streams, answer), free, "tok/s", "");
  row(fmt::format("{} streams of a schema", o.streams), kept, "tok/s", "");
  row("of the free ones' rate", 100 * kept / free, "%", ">= 80");

  // The last of them is of the schema; the first, whose steps are looked at, is free.
  Constraints one(count, nullptr);
  one.back() = constraint;
  std::vector<double> beside;
  for (const bool full : {false, true}) {
    Compiling compiling(texts, full);
    Asking streams(*model, *backend, eos, one, static_cast<int>(answer) + 1);
    streams.rate(o.seconds / 8, [&] { compiling.ask(); });
    const double rate = streams.rate(o.seconds, [&] { compiling.ask(); });
    beside = streams.steps();
    const std::string queue = full ? "the queue full of another's" : "one after the other";
    row(fmt::format("one of the free streams of a schema; new ones compile, {}", queue), rate,
        "tok/s", "");
    row("constraints compiled meanwhile", static_cast<double>(compiling.counts().compiled), "", "");
    const std::vector<double> waits = compiling.waits();
    row("wait for a new one, p50", 1e3 * quantile(waits, 0.5), "ms", "");
    row("wait for a new one, longest", 1e3 * std::ranges::max(waits), "ms", "");
  }
  for (const auto& [name, q] :
       {std::pair("p50", 0.5), std::pair("p99", 0.99), std::pair("p99.9", 0.999)}) {
    row(fmt::format("step of {} free streams, {}", o.streams, name), 1e3 * quantile(alone, q), "ms",
        "");
    row(fmt::format("one of them of a schema, {}", name), 1e3 * quantile(beside, q), "ms", "");
  }
  row("longer by, p99.9", 1e3 * (quantile(beside, 0.999) - quantile(alone, 0.999)), "ms", "<= 1");
}

}  // namespace

void add_constraint(CLI::App& app, const bool& json) {
  auto o = std::make_shared<ConstraintOptions>();
  CLI::App* constraint = app.add_subcommand(
      "constraint", "Answers of a JSON Schema beside free ones, and what they cost these");
  add_model_options(*constraint, o->model);
  constraint->add_option("--ids", o->ids,
                         "Random weights of --model's config with a vocabulary of so many ids");
  constraint->add_option("--tokenizer", o->tokenizer, "Directory of another one than --model's");
  constraint->add_option("--streams", o->streams, "At once")->capture_default_str();
  constraint->add_option("--seconds", o->seconds, "To measure each of three for")
      ->capture_default_str();
  constraint->callback([o, &json] { run(*o, json); });
}

}  // namespace recurve::bench
