#include "server/constraint/compiler.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "server/text/cut.h"

namespace recurve {
namespace {

// Thrown by pause() if the thread gets almost no processor time.
class CompileStarved {};

constexpr size_t kShareOfRefusals = 16;  // of the cache; refusals are small

}  // namespace

struct ConstraintCompiler::Waiter::Job {
  ConstraintText text;
  uint64_t client = 0;
  ThreadPriority priority = ThreadPriority::kIdle;
  bool has_thread = false;
  std::atomic<bool> unwanted{false};
  Clock::time_point turn_began = {};
  // Processor time: in total, at the beginning of the turn, and at the last sched_yield().
  double seconds = 0, slice_began = 0, gave_way = 0;
  std::optional<Outcome> outcome = {};
  std::map<uint64_t, std::function<void()>> waiters = {};
};

ConstraintCompiler::Waiter& ConstraintCompiler::Waiter::operator=(Waiter&& other) noexcept {
  if (this == &other) return *this;
  forget();
  compiler_ = std::exchange(other.compiler_, nullptr);
  job_ = std::move(other.job_);
  number_ = other.number_;
  return *this;
}

void ConstraintCompiler::Waiter::forget() {
  if (compiler_ == nullptr) return;
  ConstraintCompiler& compiler = *std::exchange(compiler_, nullptr);
  std::lock_guard lock(compiler.mutex_);
  job_->waiters.erase(number_);
  if (!job_->waiters.empty()) return;
  // A later request for the same constraint gets a new job.
  compiler.drop_job(*job_);
  job_->unwanted = true;
  const auto queue = compiler.waiting_.find(job_->client);
  if (queue != compiler.waiting_.end()) {
    std::erase(queue->second, job_);
    if (queue->second.empty()) compiler.waiting_.erase(queue);
  }
  compiler.changed_.notify_all();  // ends a job that is paused
  compiler.report();
}

void ConstraintCompiler::drop_job(const Job& job) {
  const auto found = jobs_.find(job.text);
  if (found != jobs_.end() && found->second.get() == &job) jobs_.erase(found);
}

std::optional<ConstraintCompiler::Outcome> ConstraintCompiler::Waiter::outcome() const {
  if (compiler_ == nullptr) return std::nullopt;
  std::lock_guard lock(compiler_->mutex_);
  return job_->outcome;
}

ConstraintCompiler::ConstraintCompiler(std::function<TokenTexts()> tokens, CompileLimits limits,
                                       CompileReports reports)
    : tokens_(std::move(tokens)),
      limits_(limits),
      reports_(std::move(reports)),
      compiled_(limits.cache_bytes - limits.cache_bytes / kShareOfRefusals),
      refused_(limits.cache_bytes / kShareOfRefusals) {}

ConstraintCompiler::~ConstraintCompiler() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    for (const auto& [client, job] : begun_) job->unwanted = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::optional<ConstraintCompiler::Outcome> ConstraintCompiler::compile(const ConstraintText& text,
                                                                       uint64_t client,
                                                                       std::function<void()> done,
                                                                       Waiter* waiter) {
  std::lock_guard lock(mutex_);
  if (auto known = cached(text, client)) return known;
  if (!jobs_.contains(text)) {
    const auto mine = waiting_.find(client);
    const size_t of_mine = mine == waiting_.end() ? 0 : mine->second.size();
    if (static_cast<int>(jobs_.size()) >= limits_.most_waiting ||
        static_cast<int>(of_mine) >= limits_.most_of_one) {
      ++counts_.turned_away;
      report();
      return Outcome{.full = true};
    }
    add(text, client);
  }
  const std::shared_ptr<Job>& job = jobs_.at(text);
  job->waiters.emplace(++waiters_, std::move(done));
  *waiter = Waiter(this, job, waiters_);
  return std::nullopt;
}

std::optional<ConstraintCompiler::Outcome> ConstraintCompiler::cached(const ConstraintText& text,
                                                                      uint64_t client) {
  const Outcome* found = compiled_.find(text, client);
  if (found == nullptr) found = refused_.find(text, client);
  if (found == nullptr) return std::nullopt;
  ++counts_.from_cache;
  report();
  return *found;
}

void ConstraintCompiler::add(const ConstraintText& text, uint64_t client) {
  add_threads();
  auto job = std::make_shared<Job>();
  job->text = text;
  job->client = client;
  waiting_[client].push_back(job);
  jobs_.emplace(text, std::move(job));
  if (turn_ == nullptr) pass_turn();
  report();
}

// Starts as many threads of each priority as jobs can have begun with one more client. Called on
// the threads of requests, because a thread cannot start one of a higher priority than its own.
// Throws std::system_error if there is no thread of each priority.
void ConstraintCompiler::add_threads() {
  const size_t clients = begun_.size() + waiting_.size() + 1;
  while (threads_.size() < 2 * std::min(clients, static_cast<size_t>(limits_.most_begun))) {
    const auto priority = threads_.size() % 2 == 0 ? ThreadPriority::kIdle : ThreadPriority::kLow;
    try {
      threads_.emplace_back([this, priority] { work(priority); });
    } catch (const std::system_error&) {
      if (threads_.size() < 2) throw;
      return;
    }
  }
}

// The job of the next client after the last one: one that has begun, or a waiting one if another
// may begin.
std::shared_ptr<ConstraintCompiler::Job> ConstraintCompiler::next_turn() const {
  const bool may_begin = static_cast<int>(begun_.size()) < limits_.most_begun;
  std::shared_ptr<Job> first, next;  // of all clients; of those after the last one
  const auto consider = [&](const std::shared_ptr<Job>& job) {
    if (first == nullptr || job->client < first->client) first = job;
    if (job->client <= last_client_) return;
    if (next == nullptr || job->client < next->client) next = job;
  };
  for (const auto& [client, job] : begun_) consider(job);
  for (const auto& [client, queue] : waiting_) {
    if (may_begin && !begun_.contains(client)) consider(queue.front());
  }
  return next != nullptr ? next : first;
}

void ConstraintCompiler::pass_turn() {
  turn_ = ending_ ? nullptr : next_turn();
  if (turn_ == nullptr) return;
  last_client_ = turn_->client;
  turn_->slice_began = turn_->seconds;
  turn_->turn_began = Clock::now();
  const auto queue = waiting_.find(turn_->client);
  if (begun_.emplace(turn_->client, turn_).second) {
    queue->second.pop_front();
    if (queue->second.empty()) waiting_.erase(queue);
    // Building the library, which is done once, cannot be interrupted.
    if (library_ == nullptr) turn_->priority = ThreadPriority::kLow;
  }
  changed_.notify_all();
}

void ConstraintCompiler::work(ThreadPriority priority) {
  pthread_setname_np(pthread_self(), "constraints");
  set_priority(gettid(), priority);
  while (const std::shared_ptr<Job> job = next_job(priority)) {
    try {
      const double began = thread_seconds();
      Outcome outcome = compiled(*job);
      finish(*job, std::move(outcome), thread_seconds() - began);
    } catch (const CompileStarved&) {
      restart(*job);
    }
  }
}

std::shared_ptr<ConstraintCompiler::Job> ConstraintCompiler::next_job(ThreadPriority priority) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return ending_ || (turn_ != nullptr && !turn_->has_thread && turn_->priority == priority);
  });
  if (ending_) return nullptr;
  turn_->has_thread = true;
  return turn_;
}

// Called on the job's thread during its turn. Seldom locks the mutex, because threads with requests
// would wait for this thread, which has a low priority.
void ConstraintCompiler::pause(Job& job, double seconds) {
  job.seconds = seconds;
  if (seconds - job.gave_way >= 1e-9 * static_cast<double>(kLongestRun)) {
    job.gave_way = seconds;
    sched_yield();
  }
  if (job.priority == ThreadPriority::kIdle &&
      std::chrono::duration<double>(Clock::now() - job.turn_began).count() >=
          limits_.starved_seconds) {
    throw CompileStarved();
  }
  if (!job.unwanted && seconds - job.slice_began >= limits_.slice_seconds) {
    std::unique_lock lock(mutex_);
    pass_turn();
    changed_.wait(lock, [&] { return turn_.get() == &job || job.unwanted; });
  }
  if (job.unwanted) throw CompileUnwanted();
}

ConstraintCompiler::Outcome ConstraintCompiler::compiled(Job& job) {
  try {
    pause(job, 0);
    if (library_ == nullptr) library_ = make_constraint_library(tokens_());
    return {.constraint = library_->compile(
                job.text, {.most_seconds = limits_.most_seconds,
                           .on_progress = [&](double seconds) { pause(job, seconds); },
                           .client = job.client})};
  } catch (const CompileUnwanted&) {
    return {.full = true};  // there is no waiter
  } catch (const ConstraintRefused& refused) {
    return {.refusal = refused.what()};
  } catch (const std::bad_alloc&) {
    return {.full = true};
  } catch (const std::exception& error) {
    return {.refusal = "the constraint cannot be compiled: " + cut(error.what(), kMostRepeated)};
  }
}

// Continues the turn on a thread of the other priority.
void ConstraintCompiler::restart(Job& job) {
  std::lock_guard lock(mutex_);
  job.priority = ThreadPriority::kLow;
  job.has_thread = false;
  job.seconds = job.slice_began = job.gave_way = 0;
  ++counts_.begun_again;
  changed_.notify_all();
}

void ConstraintCompiler::finish(Job& job, Outcome outcome, double seconds) {
  std::lock_guard lock(mutex_);
  begun_.erase(job.client);
  if (turn_.get() == &job) pass_turn();
  const bool given_up = outcome.full && job.unwanted;
  ++(outcome.constraint != nullptr ? counts_.compiled
     : given_up                    ? counts_.given_up
                                   : counts_.refused);
  counts_.slowest_seconds = std::max(counts_.slowest_seconds, seconds);
  if (!outcome.full) cache(job, outcome);
  job.outcome = std::move(outcome);
  drop_job(job);
  if (reports_.compiled) reports_.compiled(seconds);
  report();
  // With the mutex locked, so that Waiter::forget() does not return during the call.
  for (const auto& [number, done] : job.waiters) done();
}

void ConstraintCompiler::cache(const Job& job, const Outcome& outcome) {
  constexpr size_t kOverhead = 512;  // other memory of an entry, about
  const bool is_refused = outcome.constraint == nullptr;
  const size_t bytes = is_refused ? outcome.refusal.size() : outcome.constraint->bytes();
  (is_refused ? refused_ : compiled_)
      .put(job.text, outcome, bytes + job.text.text.size() + kOverhead, job.client);
}

void ConstraintCompiler::report() const {
  if (reports_.counts) reports_.counts(counts_now());
}

ConstraintCompiler::Counts ConstraintCompiler::counts_now() const {
  Counts counts = counts_;
  counts.waiting = static_cast<int>(jobs_.size());
  counts.cached_bytes = compiled_.bytes() + refused_.bytes();
  return counts;
}

ConstraintCompiler::Counts ConstraintCompiler::counts() const {
  std::lock_guard lock(mutex_);
  return counts_now();
}

}  // namespace recurve
