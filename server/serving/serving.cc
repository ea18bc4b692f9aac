#include "server/serving/serving.h"

#include <algorithm>
#include <utility>

#include "server/constraint/compiler.h"
#include "server/serving/chat_prompt.h"

namespace recurve {
namespace {

// Seconds after which a client that was refused may come again: not so soon that refusing becomes
// the work, nor so late that nobody is there when there is room.
constexpr double kSoonest = 0.1, kLatest = 60;
// How long calls that were cancelled may take to say so: the engine needs one step for it.
constexpr auto kLastWords = std::chrono::seconds(5);
// How long calls are still refused in, once the last one that is served has ended.
constexpr auto kLastRefusals = std::chrono::milliseconds(200);
// Of what the queue and the slots have left, what one share may have; and the part of all that is
// for the first request of a share.
constexpr int kTimesWhatIsLeft = 3, kPartForFirst = 8;

}  // namespace

Serving::Serving(ServingOptions options_, AdmissionQueue& queue_, const EngineStats& stats_,
                 Metrics& metrics_)
    : options(std::move(options_)),
      queue(queue_),
      stats(stats_),
      metrics(metrics_),
      access(options.keys),
      message_bytes(options.max_bytes_under_way),
      gathered_bytes(options.max_gathered_bytes),
      text(options.text_threads, options.on_failure),
      delivery(options.delivery_threads, options.on_failure) {}

Serving::~Serving() = default;

void Serving::serve(std::shared_ptr<const Tokenizer> tokenizer, ServingInfo served, Chat chat) {
  info = std::move(served);
  rules.vocab = {.rows = info.vocab_rows,
                 .usable = std::min(tokenizer->size(), info.vocab_rows),
                 .eos_ids = info.tokens.eos};
  rules.answer_end = find_answer_end(chat, *tokenizer);
  rules.chat = std::move(chat);
  rules.tokenizer = std::move(tokenizer);
  rules.tools = tool_rules_of(rules);
  rules.longest = longest_tokens(*rules.tokenizer, rules.vocab.usable);
  rules.tokens = info.tokens;
  rules.max_prompt_tokens = options.max_prompt_tokens;
  rules.max_generated_tokens = options.max_generated_tokens;
  rules.max_choices = info.slots;
  constraints = make_compiler();
  loaded_ = true;
  auto loading = State::kLoading;
  state_.compare_exchange_strong(loading, State::kServing);  // not where it drains already
  tell_listeners();
}

std::unique_ptr<ConstraintCompiler> Serving::make_compiler() {
  CompileReports reports{
      .counts =
          [this](const CompileCounts& counts) {
            metrics.set_constraints({.compiled = counts.compiled,
                                     .from_cache = counts.from_cache,
                                     .refused = counts.refused,
                                     .given_up = counts.given_up,
                                     .turned_away = counts.turned_away,
                                     .waiting = counts.waiting,
                                     .cached_bytes = static_cast<int64_t>(counts.cached_bytes)});
          },
      .compiled = [this](double seconds) { metrics.observe_constraint(seconds); }};
  return std::make_unique<ConstraintCompiler>([this] { return token_texts(); }, CompileLimits(),
                                              std::move(reports));
}

TokenTexts Serving::token_texts() const {
  TokenTexts texts;
  for (int32_t id = 0; id < rules.vocab.usable; ++id) {
    const bool special = rules.tokenizer->is_special(id);
    texts.emplace_back(special ? std::string_view() : rules.tokenizer->token_bytes(id));
  }
  return texts;
}

void Serving::stop_serving() {
  state_ = State::kDraining;
  tell_listeners();
}

bool Serving::drain(Clock::time_point deadline) {
  stop_serving();
  if (registry.wait_until_all_served(deadline)) {
    // Clients that try again at once would keep the server for ever.
    registry.wait_until_empty(std::min(deadline, Clock::now() + kLastRefusals));
    return true;
  }
  registry.abort_all();
  wait_for_last_words();
  return false;
}

void Serving::wait_for_last_words() { registry.wait_until_empty(Clock::now() + kLastWords); }

void Serving::set_durable(bool durable) {
  durable_ = durable;
  tell_listeners();
}

// As much as there are slots, and of what the queue and the slots together have left, so many times
// as much; the last part is for those who have nothing under way. So a flood of one finds a quarter
// of the queue closed and floods of several a part each, and whoever comes beside them finds room.
// Other addresses are bounded so too, as what is this machine's comes from whoever runs it.
QueueBounds Serving::bounds_of(const Identity& caller) const {
  if (!is_shared(caller)) return {};
  const int all = info.slots + queue.max_waiting(), left = std::max(0, all - under_way());
  const int most = info.slots + kTimesWhatIsLeft * left;
  const bool others = caller.group() != kThisMachine;
  return {.most = most,
          .most_of_group = others ? most : TenantLimits::kNone,
          .first_only = left <= all / kPartForFirst};
}

int Serving::most_at_once(const Identity& caller) const {
  const int waiting = queue.max_waiting();
  const int share = info.slots + kTimesWhatIsLeft * waiting / (1 + kTimesWhatIsLeft);
  return std::max(is_shared(caller) ? std::min(waiting, share) : waiting, 1);
}

void Serving::when_serving_changes(const void* owner, ServingListener listener) {
  std::lock_guard lock(mutex_);
  listener(state_ == State::kServing, durable_);
  listeners_.emplace(owner, std::move(listener));
}

void Serving::forget_listener(const void* owner) {
  std::lock_guard lock(mutex_);
  listeners_.erase(owner);
}

// The state is looked at under the lock: whoever comes last says what is true.
void Serving::tell_listeners() {
  std::lock_guard lock(mutex_);
  for (const auto& [owner, listener] : listeners_) listener(state_ == State::kServing, durable_);
}

Refused Serving::availability() const {
  switch (state_.load()) {
    case State::kServing:
      return {};
    case State::kLoading:
      return refuse(EndReason::kLoading);
    case State::kDraining:
      break;
  }
  return refuse(EndReason::kClosed);
}

Refused Serving::report(Refused refusal) const {
  if (!refusal) return {};
  metrics.request_failed(refusal->row().code);
  if (refusal->row().retry == Retry::kLater) {
    const double seconds = refusal->retry_seconds.value_or(stats.expected_queue_seconds);
    refusal->retry_seconds = std::clamp(seconds, kSoonest, kLatest);
  }
  return refusal;
}

void Serving::drain_for_client(double seconds) {
  delivery.post([this, seconds] {
    registry.end_by(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                       std::chrono::duration<double>(seconds)));
    options.on_drain(seconds);
  });
}

}  // namespace recurve
