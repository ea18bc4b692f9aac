#include "server/serving/server_core.h"

#include <algorithm>
#include <utility>

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

ServerCore::ServerCore(ServerCoreOptions options_, std::shared_ptr<ServedModel> model,
                       Metrics& metrics_)
    : options(std::move(options_)),
      metrics(metrics_),
      model_(std::move(model)),
      access(options.keys),
      message_bytes(options.max_bytes_under_way),
      gathered_bytes(options.max_gathered_bytes),
      text_threads(options.text_threads, options.on_failure),
      delivery_threads(options.delivery_threads, options.on_failure) {}

void ServerCore::serve(std::shared_ptr<const Tokenizer> tokenizer, ServingInfo info, Chat chat) {
  model_->load(std::move(tokenizer), std::move(info), std::move(chat), options.max_prompt_tokens,
               options.max_generated_tokens, metrics);
  auto loading = State::kLoading;
  state_.compare_exchange_strong(loading, State::kServing);  // not where it drains already
  tell_listeners();
}

void ServerCore::stop_serving() {
  state_ = State::kDraining;
  tell_listeners();
}

bool ServerCore::drain(Clock::time_point deadline) {
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

void ServerCore::wait_for_last_words() { registry.wait_until_empty(Clock::now() + kLastWords); }

void ServerCore::set_durable(bool durable) {
  durable_ = durable;
  tell_listeners();
}

// As much as there are slots, and of what the queue and the slots together have left, so many times
// as much; the last part is for those who have nothing under way. So a flood of one finds a quarter
// of the queue closed and floods of several a part each, and whoever comes beside them finds room.
// Other addresses are bounded so too, as what is this machine's comes from whoever runs it.
QueueBounds ServerCore::bounds_of(const Identity& caller) const {
  if (!is_shared(caller)) return {};
  const int all = model_->info.slots + model_->queue.max_waiting(),
            left = std::max(0, all - under_way());
  const int most = model_->info.slots + kTimesWhatIsLeft * left;
  const bool others = caller.group() != kThisMachine;
  return {.most = most,
          .most_of_group = others ? most : TenantLimits::kNone,
          .first_only = left <= all / kPartForFirst};
}

int ServerCore::most_at_once(const Identity& caller) const {
  const int waiting = model_->queue.max_waiting();
  const int share = model_->info.slots + kTimesWhatIsLeft * waiting / (1 + kTimesWhatIsLeft);
  return std::max(is_shared(caller) ? std::min(waiting, share) : waiting, 1);
}

void ServerCore::when_serving_changes(const void* owner, ServingListener listener) {
  std::lock_guard lock(mutex_);
  listener(state_ == State::kServing, durable_);
  listeners_.emplace(owner, std::move(listener));
}

void ServerCore::forget_listener(const void* owner) {
  std::lock_guard lock(mutex_);
  listeners_.erase(owner);
}

// The state is looked at under the lock: whoever comes last says what is true.
void ServerCore::tell_listeners() {
  std::lock_guard lock(mutex_);
  for (const auto& [owner, listener] : listeners_) listener(state_ == State::kServing, durable_);
}

Refused ServerCore::availability() const {
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

Refused ServerCore::report(Refused refusal) const {
  if (!refusal) return {};
  metrics.request_failed(refusal->row().code);
  if (refusal->row().retry == Retry::kLater) {
    const double seconds = refusal->retry_seconds.value_or(model_->stats.expected_queue_seconds);
    refusal->retry_seconds = std::clamp(seconds, kSoonest, kLatest);
  }
  return refusal;
}

void ServerCore::drain_for_client(double seconds) {
  delivery_threads.post([this, seconds] {
    registry.end_by(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                       std::chrono::duration<double>(seconds)));
    options.on_drain(seconds);
  });
}

}  // namespace recurve
