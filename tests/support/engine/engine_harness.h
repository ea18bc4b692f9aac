#pragma once
#include <gtest/gtest.h>

#include <bit>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "kernels/ops/sample_math.h"
#include "server/engine/engine.h"
#include "tests/support/engine/null_model.h"
#include "tests/support/held_clock.h"

namespace recurve::testing {

// A token with its log-probabilities as bits, so that == means the same to the last bit.
struct TokenBits {
  int32_t id = -1;
  uint32_t logprob = 0;
  std::vector<std::pair<int32_t, uint32_t>> top = {};
  bool operator==(const TokenBits&) const = default;

  static std::vector<TokenBits> of(const std::vector<SampledToken>& tokens) {
    std::vector<TokenBits> bits;
    for (const SampledToken& token : tokens) {
      bits.push_back({token.id, std::bit_cast<uint32_t>(token.logprob), {}});
      for (const TokenLogprob& other : token.top) {
        bits.back().top.emplace_back(other.id, std::bit_cast<uint32_t>(other.logprob));
      }
    }
    return bits;
  }
};

inline void PrintTo(const TokenBits& token, std::ostream* out) {
  *out << token.id << " (" << std::bit_cast<float>(token.logprob) << ")";
}

// All that a client is told about one choice of its request. Belongs to one thread.
class Answer {
 public:
  Answer() {
    stream_->on_ready([state = ready_] { state->notify(); });
  }

  // Takes what has gathered. Checks what holds for every stream: one Accepted, first; one
  // StreamEnd, last.
  void take() {
    TokenStream::Gathered news = stream_->take();
    if (news.empty()) return;
    EXPECT_FALSE(ending) << "something came after the end";
    if (news.accepted) {
      EXPECT_FALSE(accepted) << "accepted twice";
      accepted = news.accepted;
    }
    EXPECT_TRUE(accepted || (news.prompt.empty() && news.tokens.empty())) << "not accepted yet";
    prompt.insert(prompt.end(), news.prompt.begin(), news.prompt.end());
    tokens.insert(tokens.end(), news.tokens.begin(), news.tokens.end());
    ending = std::move(news.ending);
  }

  // For a harness with a thread: waits for news and takes it; false if none came for long.
  bool wait() {
    if (!ready_->wait()) return false;
    take();
    return true;
  }
  void wait_for_end() {
    while (!ending) ASSERT_TRUE(wait()) << "no news of a request for long";
  }

  bool ended() const { return ending.has_value(); }
  EndReason reason() const {
    EXPECT_TRUE(ending) << "has not ended";
    return ending ? ending->reason : EndReason::kInternal;
  }
  std::vector<int32_t> ids() const {
    std::vector<int32_t> ids;
    for (const SampledToken& token : tokens) ids.push_back(token.id);
    return ids;
  }
  std::vector<TokenBits> bits() const { return TokenBits::of(tokens); }
  std::vector<TokenBits> prompt_bits() const { return TokenBits::of(prompt); }
  const std::shared_ptr<TokenStream>& stream() { return stream_; }

  AdmissionQueue::Admission admission = AdmissionQueue::Admission::kClosed;
  std::optional<Accepted> accepted;
  std::vector<SampledToken> prompt, tokens;
  std::optional<StreamEnd> ending;

 private:
  struct Ready {
    std::mutex mutex;
    std::condition_variable changed;
    bool news = false;
    void notify() {
      std::lock_guard lock(mutex);
      news = true;
      changed.notify_one();
    }
    bool wait() {
      std::unique_lock lock(mutex);
      const bool came = changed.wait_for(lock, std::chrono::seconds(60), [this] { return news; });
      news = false;
      return came;
    }
  };
  std::shared_ptr<Ready> ready_ = std::make_shared<Ready>();
  std::shared_ptr<TokenStream> stream_ = std::make_shared<TokenStream>();
};

using AnswerPtr = std::unique_ptr<Answer>;

struct HarnessOptions {
  int slots = 4;
  int rows_per_step = 0;  // 0: the least that works
  int max_queue = 1000;
  PageLimits pages = {.pages = 512, .most_tokens = 8192};
  int64_t host_bytes = int64_t{1} << 30;
  int64_t preempted_bytes = int64_t{1} << 40;
  double ttl_seconds = 0;
  double step_seconds = 0;
  FirstTokenBound first_token = {};
  std::vector<int32_t> eos = {};
  std::optional<bool> launch_ahead = {};  // not said: as the device would have it
  std::function<void(const char*)> on_failure = {};
  PrefixLimits prefix = {};
  Archive* archive = nullptr;  // for sessions, and states of prompts
  StateHeader identity = {};   // of what is written there
  std::string model_name = {};
  std::function<void(const StoredModel& model, int sessions)> on_other_model = {};
  std::function<void(std::string_view tenant, std::string_view name, const std::string& why)>
      on_state_lost = {},
      on_tokens_lost = {};
  std::string made_by = {};
  int64_t disk_bytes = int64_t{1} << 40;
  int64_t ballast = 0;                                  // of NullHarness's states, see NullModel
  std::shared_ptr<const AdapterTargets> adapters = {};  // of the model, if requests have some
};

// An engine and what it needs, stepped by hand, so that every run is the same, or on a thread.
class EngineHarness {
 public:
  EngineHarness(const Model& model, Backend& backend, const HarnessOptions& options = {})
      : archive_(options.archive),
        queue_(options.max_queue),
        engine_(model, backend,
                {.rows = static_cast<int32_t>(model.info().vocab),
                 .usable = static_cast<int32_t>(model.info().vocab),
                 .eos_ids = options.eos},
                queue_, stats_, metrics_,
                {.slots = options.slots,
                 .rows_per_step = options.rows_per_step,
                 .step_seconds = options.step_seconds,
                 .first_token = options.first_token,
                 .pages = options.pages,
                 .preempted_bytes = options.preempted_bytes,
                 .sessions = {.host_bytes = options.host_bytes,
                              .default_ttl_seconds = options.ttl_seconds,
                              .archive = options.archive,
                              .identity = options.identity,
                              .model_name = options.model_name,
                              .disk_bytes = options.disk_bytes,
                              .on_other_model = options.on_other_model,
                              .on_state_lost = options.on_state_lost,
                              .on_tokens_lost = options.on_tokens_lost},
                 .prefix = options.prefix,
                 .adapters = options.adapters,
                 .made_by = options.made_by,
                 .launch_ahead = options.launch_ahead,
                 .on_failure = options.on_failure}) {}
  ~EngineHarness() { join(); }

  // Queues a request with one choice, or `choices`.
  AnswerPtr submit(Request request) { return std::move(submit(std::move(request), 1)[0]); }
  std::vector<AnswerPtr> submit(Request request, int choices) {
    std::vector<AnswerPtr> answers;
    for (int c = 0; c < choices; ++c) {
      answers.push_back(std::make_unique<Answer>());
      request.streams.push_back(answers.back()->stream());
    }
    const AdmissionQueue::Admission admission = queue_.push(std::move(request));
    for (AnswerPtr& answer : answers) answer->admission = admission;
    return answers;
  }

  bool step() { return engine_.step(); }
  void step(int steps) {
    for (int i = 0; i < steps; ++i) step();
  }
  // Steps until there is nothing to compute and no state is on its way to or from a slot. The last
  // four are without work, as up to three may each have sent for a copy: of a state that leaves its
  // slot, of one that takes it, of a page. Nor is anything taken from the archive in them, which
  // leads to work where it is copied to the device first.
  void run_until_idle(int most_steps = 100000) {
    int idle = 0;
    for (int i = 0; i < most_steps; ++i) {
      const bool was_under_way = archive_under_way();
      const bool worked = step() || (was_under_way && !archive_under_way());
      wait_for_copies();
      idle = worked ? 0 : idle + 1;
      if (idle == 4) return;
    }
    ADD_FAILURE() << "still busy after " << most_steps << " steps";
  }
  // Until no state is on its way.
  void wait_for_copies() {
    while (engine_.copying()) queue_.wait(std::nullopt);
  }
  // Submits, and steps until there is nothing to compute.
  AnswerPtr ask(Request request) {
    AnswerPtr answer = submit(std::move(request));
    run_until_idle();
    answer->take();
    return answer;
  }

  // Queues a command; the result is there after the next step.
  std::future<SessionResult> post(SessionCommand command) {
    auto promise = std::make_shared<std::promise<SessionResult>>();
    std::future<SessionResult> result = promise->get_future();
    command.done = [promise](SessionResult done) { promise->set_value(std::move(done)); };
    if (queue_.post(std::move(command)) != AdmissionQueue::Admission::kAccepted) {
      promise->set_value({.reason = EndReason::kDraining});
    }
    return result;
  }
  SessionResult command(SessionCommand::Kind kind, const std::string& name,
                        const std::string& other = "") {
    return command({.kind = kind, .name = name, .other = other});
  }
  SessionResult command(SessionCommand command) {
    std::future<SessionResult> result = post(std::move(command));
    if (!thread_.joinable()) step();
    // What is exported is there in the step after it has been copied.
    constexpr std::chrono::seconds kAtOnce(0);
    while (!thread_.joinable() && result.wait_for(kAtOnce) != std::future_status::ready) {
      wait_for_copies();
      step();
    }
    return result.get();
  }
  SessionResult open(const std::string& name) { return command(SessionCommand::Kind::kOpen, name); }
  SessionInfo get(const std::string& name) {
    SessionResult result = command(SessionCommand::Kind::kGet, name);
    EXPECT_EQ(result.sessions.size(), 1u) << result.message;
    return result.sessions.empty() ? SessionInfo{} : result.sessions[0];
  }

  void start() {
    thread_ = std::thread([this] { engine_.run(); });
  }
  // Lets what is under way end, then stops the thread.
  void join() {
    if (!thread_.joinable()) return;
    queue_.close();
    thread_.join();
  }

  Engine& engine() { return engine_; }
  AdmissionQueue& queue() { return queue_; }
  EngineStats stats() const { return stats_.read(); }

 private:
  bool archive_under_way() const { return archive_ != nullptr && archive_->working(); }

  Archive* archive_;
  AdmissionQueue queue_;
  PublishedStats stats_;
  EngineMetrics metrics_;
  Engine engine_;
  std::thread thread_;
};

// `length` ids below `vocab`, another text for each seed.
inline std::vector<int32_t> some_prompt(size_t length, uint64_t seed, int32_t vocab) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < length; ++i) {
    ids.push_back(static_cast<int32_t>(random_bits(seed, i, 9) % static_cast<uint64_t>(vocab)));
  }
  return ids;
}

// An engine around the null model, which tells what each step was made of.
class NullHarness {
 public:
  static constexpr int32_t kVocab = 50;
  static constexpr int kChunk = 8;

  // Rows of each sequence of a step, in the engine's order.
  using StepRows = std::vector<int>;

  explicit NullHarness(const HarnessOptions& options = {}, int32_t poison = -1,
                       std::unique_ptr<Backend> backend = make_backend("reference"))
      : backend_(std::move(backend)),
        model_(kVocab, {.chunk = kChunk,
                        .poison = poison,
                        .ballast = options.ballast,
                        .on_step = [this](const StepBatch& batch) { note(batch); }}),
        harness_(model_, *backend_, options) {}

  EngineHarness* operator->() { return &harness_; }
  EngineHarness& operator*() { return harness_; }
  const NullModel& model() const { return model_; }
  Backend& backend() { return *backend_; }
  int64_t state_bytes() const { return static_cast<int64_t>(model_.state_layout().bytes()); }
  const std::vector<StepRows>& steps() const { return steps_; }

  // A greedy request for `max_tokens` tokens, with log-probabilities. Never holds the last id.
  static Request request(size_t length, int max_tokens, uint64_t seed = 0,
                         const std::string& session = "") {
    Request request{.prompt = some_prompt(length, seed, kVocab - 1), .session = session};
    request.sampling.temperature = 0;
    request.sampling.max_tokens = max_tokens;
    request.sampling.logprobs = 1;
    return request;
  }

  // What a separate engine with nothing else to do answers to the request.
  AnswerPtr alone(Request request) {
    EngineHarness quiet(quiet_model_, *backend_, {.slots = 1});
    return quiet.ask(std::move(request));
  }

 private:
  void note(const StepBatch& batch) {
    StepRows rows;
    for (int b = 0; b < batch.seqs.num_seqs; ++b) {
      rows.push_back(batch.seqs.begin[b + 1] - batch.seqs.begin[b]);
    }
    steps_.push_back(std::move(rows));
  }

  std::unique_ptr<Backend> backend_;
  std::vector<StepRows> steps_;
  NullModel model_;
  NullModel quiet_model_{kVocab, {.chunk = kChunk}};
  EngineHarness harness_;
};

}  // namespace recurve::testing
