#include "server/observe/tracer.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <utility>

#include "server/observe/log.h"

namespace recurve {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kGather(500);      // after the first span of a batch
constexpr milliseconds kTimeout(2000);    // for the collector's response
constexpr milliseconds kFirstWait(1000);  // before the next attempt; doubled each time
constexpr milliseconds kLongestWait(30'000);

}  // namespace

Tracer::Tracer(TracerOptions options, Metrics& metrics)
    : options_(std::move(options)), metrics_(metrics), thread_([this] { run(); }) {}

Tracer::~Tracer() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool Tracer::begins_trace() const {
  thread_local std::minstd_rand random{std::random_device()()};
  return std::uniform_real_distribution<>()(random) < options_.ratio;
}

void Tracer::record(std::vector<TraceSpan> spans) {
  {
    std::lock_guard lock(mutex_);
    if (waiting_.size() + spans.size() > kMostSpans) {
      return metrics_.add_spans(Metrics::Spans::kDropped, static_cast<int64_t>(spans.size()));
    }
    std::move(spans.begin(), spans.end(), std::back_inserter(waiting_));
  }
  changed_.notify_all();
}

void Tracer::run() {
  pthread_setname_np(pthread_self(), "traces");
  std::vector<TraceSpan> batch;
  while (await_batch(&batch)) {
    const bool sent = send(batch);
    metrics_.add_spans(sent ? Metrics::Spans::kSent : Metrics::Spans::kDropped,
                       static_cast<int64_t>(batch.size()));
    std::lock_guard lock(mutex_);
    if (!sent && stopping_) break;  // do not try the rest
  }
}

// False: there is no span, and none will come.
bool Tracer::await_batch(std::vector<TraceSpan>* batch) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
  changed_.wait_for(lock, kGather, [&] { return stopping_ || waiting_.size() >= kBatch; });
  const auto end =
      waiting_.begin() + static_cast<std::ptrdiff_t>(std::min(waiting_.size(), kBatch));
  batch->assign(std::move_iterator(waiting_.begin()), std::move_iterator(end));
  waiting_.erase(waiting_.begin(), end);
  return !batch->empty();
}

// Logs the first failure, and the first success after it.
bool Tracer::send(const std::vector<TraceSpan>& batch) {
  const std::string body = otlp_json(batch, options_.source);
  for (milliseconds wait = kFirstWait;; wait = std::min(2 * wait, kLongestWait)) {
    const OtlpResult result = post_otlp(options_.target, body, kTimeout);
    if (result.accepted) {
      if (std::exchange(failing_, false)) {
        log_event(LogLevel::kInfo, "traces_sent_again", {{"host", options_.target.host}});
      }
      return true;
    }
    if (!std::exchange(failing_, true)) {
      log_event(LogLevel::kWarning, "traces_not_sent",
                {{"host", options_.target.host},
                 {"port", options_.target.port},
                 {"what", result.problem}});
    }
    if (!result.retryable || !sleep_for(wait)) return false;
  }
}

// False: the server stops.
bool Tracer::sleep_for(milliseconds time) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, time, [&] { return stopping_; });
}

}  // namespace recurve
