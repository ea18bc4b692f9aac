// recurve-bench constraint: what answers that are kept to a JSON Schema cost: their own rate
// compared to free ones', and the steps of others that share the batch with them while constraints
// compile.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>
#include <string>

#include "server/constraint/compiler.h"
#include "server/engine/engine.h"
#include "server/text/tokenizers/tokenizer.h"
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
  double seconds = 15, turn = 2, warm = 4;
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

// What the engine's thread has had until now, or in one step.
struct ThreadTimes {
  double wall = 0, processor = 0;            // seconds
  int64_t faults = 0, taken = 0, waits = 0;  // minor page faults; switches, involuntary and its own

  static ThreadTimes now() {
    rusage used{};
    getrusage(RUSAGE_THREAD, &used);
    return {.wall = std::chrono::duration<double>(Clock::now().time_since_epoch()).count(),
            .processor = thread_seconds(),
            .faults = used.ru_minflt,
            .taken = used.ru_nivcsw,
            .waits = used.ru_nvcsw};
  }
  ThreadTimes since(const ThreadTimes& before) const {
    return {wall - before.wall, processor - before.processor, faults - before.faults,
            taken - before.taken, waits - before.waits};
  }
};
using Steps = std::vector<ThreadTimes>;

// An engine on its thread, and streams that ask again as soon as they have their answer; each keeps
// to its constraint, or to none. The times of the first one's tokens are those of the steps. It
// stands still, in the middle of its answers, but for its turns.
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
    set(State::kRuns);
    thread_.join();
  }

  // Goes on for so long; `measured`: its tokens and steps count.
  template <typename Meanwhile>
  void turn(double seconds, bool measured, const Meanwhile& meanwhile) {
    const auto began = Clock::now();
    const int64_t before = tokens_;
    set(measured ? State::kMeasured : State::kRuns);
    while (seconds_between(began, Clock::now()) < seconds) {
      meanwhile();
      read();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    while (!stands_soon()) read();
    if (!measured) return;
    measured_seconds_ += seconds_between(began, Clock::now());
    measured_tokens_ += tokens_ - before;
  }
  double rate() const { return static_cast<double>(measured_tokens_) / measured_seconds_; }
  // From one of the first stream's tokens to the next. Between turns.
  const Steps& steps() const { return steps_; }
  // Tokens of one that has ended; 0: none has.
  double mean_answer() const {
    return ended_ == 0 ? 0 : static_cast<double>(tokens_of_ended_) / static_cast<double>(ended_);
  }

 private:
  enum class State { kRuns, kMeasured, kStopping, kStands };

  void set(State state) {
    std::lock_guard lock(mutex_);
    state_ = state;
    changed_.notify_all();
  }
  // It cannot where the first stream has ended and asks only as it is read. One that stands has
  // that stream's lock.
  bool stands_soon() {
    std::unique_lock lock(mutex_);
    state_ = State::kStopping;
    const auto stands = [this] { return state_ == State::kStands; };
    if (changed_.wait_for(lock, std::chrono::milliseconds(100), stands)) return true;
    state_ = State::kRuns;
    return false;
  }
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
  // On the engine's thread, between two steps: it stands here until its next turn.
  void note_step() {
    std::unique_lock lock(mutex_);
    if (state_ == State::kStopping) {
      state_ = State::kStands;
      changed_.notify_all();
      changed_.wait(lock, [this] { return state_ != State::kStands; });
      last_step_.reset();
    }
    const ThreadTimes now = ThreadTimes::now();
    if (state_ == State::kMeasured && last_step_) steps_.push_back(now.since(*last_step_));
    last_step_ = now;
  }
  void read() {
    for (size_t s = 0; s < streams_.size(); ++s) {
      const TokenStream::Gathered gathered = streams_[s]->take();
      tokens_ += std::ssize(gathered.tokens);
      if (!gathered.ending) continue;
      ++ended_;
      tokens_of_ended_ += gathered.ending->generated_tokens;
      ask(s);
    }
  }

  const Constraints constraints_;
  const int max_tokens_;
  AdmissionQueue queue_;
  PublishedStats stats_;
  EngineMetrics metrics_;
  Engine engine_;
  std::vector<std::shared_ptr<TokenStream>> streams_;
  std::thread thread_;
  uint64_t seed_ = 0;
  int64_t tokens_ = 0, tokens_of_ended_ = 0, measured_tokens_ = 0;
  double measured_seconds_ = 0;
  int ended_ = 0;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  State state_ = State::kStopping;
  std::optional<ThreadTimes> last_step_;
  Steps steps_;
};

// A compiler that one client asks for a schema that is new as soon as its last is there; another
// client may fill the queue at the same time.
class Compiling {
 public:
  Compiling(const TokenTexts& texts, bool full)
      : compiler_([texts] { return texts; }, {.most_of_one = kWaiting}),
        waiters_(full ? kWaiting : 0) {}

  void ask() {
    for (auto& waiter : waiters_) {
      if (filled_ && !waiter.outcome()) continue;
      ask_for(kFilling, &waiter);
    }
    filled_ = true;
    if (asked_ && !one_.outcome()) return;
    if (asked_) waits_.push_back(seconds_between(*asked_, Clock::now()));
    asked_ = Clock::now();
    ask_for(kAsking, &one_);
  }
  // What is waited for is given up, and nothing compiles until the next ask().
  void stop() {
    if (asked_) longest_cut_ = std::max(longest_cut_, seconds_between(*asked_, Clock::now()));
    asked_.reset();
    one_.forget();
    for (auto& waiter : waiters_) waiter.forget();
    filled_ = false;
  }
  ConstraintCompiler::Counts counts() const { return compiler_.counts(); }
  // Seconds, of the one that asks; one that was cut off counts where it waited longest.
  std::vector<double> waits() const {
    std::vector<double> all = waits_;
    if (all.empty() || longest_cut_ > std::ranges::max(all)) all.push_back(longest_cut_);
    return all;
  }

 private:
  static constexpr int kWaiting = 32;
  static constexpr uint64_t kFilling = 0, kAsking = 1;  // clients

  void ask_for(uint64_t client, ConstraintCompiler::Waiter* waiter) {
    waiter->forget();
    compiler_.compile({ConstraintText::Form::kJsonSchema, schema(++given_)}, client, [] {}, waiter);
  }

  ConstraintCompiler compiler_;
  std::vector<ConstraintCompiler::Waiter> waiters_;
  ConstraintCompiler::Waiter one_;
  std::optional<Clock::time_point> asked_;
  std::vector<double> waits_;
  double longest_cut_ = 0;
  bool filled_ = false;
  int given_ = 0;
};

std::vector<double> lengths(const Steps& steps) {
  std::vector<double> seconds;
  for (const ThreadTimes& step : steps) seconds.push_back(step.wall);
  return seconds;
}

// What the longest hundredth of steps waited for, compared to all steps.
std::string waited_for(Steps steps) {
  if (steps.empty()) return "";
  std::ranges::sort(steps, {}, &ThreadTimes::wall);
  const auto means = [&](size_t from) {
    ThreadTimes sum;
    const auto add = [](auto& to, auto what) { to += what; };
    for (size_t i = from; i < steps.size(); ++i) {
      add(sum.wall, steps[i].wall);
      add(sum.processor, steps[i].processor);
      add(sum.faults, steps[i].faults);
      add(sum.taken, steps[i].taken);
      add(sum.waits, steps[i].waits);
    }
    const auto count = static_cast<double>(steps.size() - from);
    return fmt::format(
        "{:.2f} ms, {:.2f} of them off the processor, {:.2f} involuntary and {:.2f} own switches, "
        "{:.1f} faults",
        1e3 * sum.wall / count, 1e3 * (sum.wall - sum.processor) / count,
        static_cast<double>(sum.taken) / count, static_cast<double>(sum.waits) / count,
        static_cast<double>(sum.faults) / count);
  };
  return means(steps.size() - std::max<size_t>(1, steps.size() / 100)) + "; of all: " + means(0);
}

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
  const auto none = [] {};
  Asking kept(*model, *backend, eos, Constraints(count, constraint), kMostTokens);
  kept.turn(std::max(o.warm, o.turn), /*measured=*/false, none);
  const double answer = kept.mean_answer() > 0 ? kept.mean_answer() : kMostTokens;
  const int as_long = static_cast<int>(answer) + 1;
  Asking free(*model, *backend, eos, Constraints(count, nullptr), as_long);
  // The last of them is of the schema; the first, whose steps are looked at, is free.
  Constraints one(count, nullptr);
  one.back() = constraint;
  Compiling few(texts, /*full=*/false), many(texts, /*full=*/true);
  Asking beside_few(*model, *backend, eos, one, as_long);
  Asking beside_many(*model, *backend, eos, one, as_long);
  // In turns, so that all have their share of what the machine is slow at.
  for (double seconds = 0; seconds < o.seconds; seconds += o.turn) {
    const auto turn = [&](Asking& streams, const auto& meanwhile) {
      streams.turn(o.turn / 8, /*measured=*/false, meanwhile);
      streams.turn(std::min(o.turn, o.seconds - seconds), /*measured=*/true, meanwhile);
    };
    turn(free, none);
    turn(kept, none);
    for (auto* const phase : {&few, &many}) {
      turn(phase == &few ? beside_few : beside_many, [&] { phase->ask(); });
      phase->stop();
    }
  }
  row(fmt::format("{} free streams, answers of {:.0f}", o.streams, answer), free.rate(), "tok/s",
      "");
  row(fmt::format("{} streams of a schema", o.streams), kept.rate(), "tok/s", "");
  row("of the free ones' rate", 100 * kept.rate() / free.rate(), "%", ">= 80");
  const auto compiling_row = [&](const Asking& streams, const Compiling& compiling,
                                 const char* queue) {
    row(fmt::format("one of the free streams of a schema; new ones compile, {}", queue),
        streams.rate(), "tok/s", "");
    row("constraints compiled meanwhile", static_cast<double>(compiling.counts().compiled), "", "");
    const std::vector<double> waits = compiling.waits();
    row("wait for a new one, p50", 1e3 * quantile(waits, 0.5), "ms", "");
    row("wait for a new one, longest", 1e3 * std::ranges::max(waits), "ms", "");
  };
  compiling_row(beside_few, few, "one after the other");
  compiling_row(beside_many, many, "the queue full of another's");
  const std::pair<std::string, const Asking*> looked_at[] = {
      {fmt::format("{} free streams", o.streams), &free},
      {"one of them of a schema, one after the other compiles", &beside_few},
      {"one of them of a schema, the queue full", &beside_many}};
  for (const auto& [name, q] :
       {std::pair("p50", 0.5), std::pair("p99", 0.99), std::pair("p99.9", 0.999)}) {
    for (const auto& [what, streams] : looked_at) {
      row(fmt::format("step of {}, {}", what, name), 1e3 * quantile(lengths(streams->steps()), q),
          "ms", "");
    }
  }
  for (const auto& [what, streams] : looked_at) {
    row(fmt::format("the longest 1 % of steps, {}: {}", what, waited_for(streams->steps())),
        static_cast<double>(streams->steps().size()), "steps", "");
  }
  row("longer by, p99.9",
      1e3 *
          (quantile(lengths(beside_many.steps()), 0.999) - quantile(lengths(free.steps()), 0.999)),
      "ms", "<= 1");
}

}  // namespace

void add_constraint(CLI::App& app, const bool& json) {
  auto o = std::make_shared<ConstraintOptions>();
  CLI::App* constraint = app.add_subcommand(
      "constraint", "Measure answers with a JSON Schema next to answers without one");
  add_model_options(*constraint, o->model);
  constraint->add_option("--ids", o->ids,
                         "Use random weights for --model's config, with a vocabulary of this "
                         "many ids");
  constraint->add_option("--tokenizer", o->tokenizer,
                         "Use the tokenizer in this directory; default: --model's");
  constraint->add_option("--streams", o->streams, "Concurrent streams")->capture_default_str();
  constraint->add_option("--seconds", o->seconds, "Time to measure each of four phases; seconds")
      ->capture_default_str();
  constraint
      ->add_option("--warm", o->warm,
                   "Time for which answers with the schema run first, so that their masks are "
                   "cached; seconds")
      ->capture_default_str();
  constraint->add_option("--turn", o->turn, "Length of a turn of a phase; seconds")
      ->capture_default_str();
  constraint->callback([o, &json] { run(*o, json); });
}

}  // namespace recurve::bench
