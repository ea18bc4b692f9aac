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

// Thrown by rest(): the thread gets next to nothing of a processor.
class CompileStarved {};

constexpr size_t kPartOfRefusals = 16;  // of what is kept one, as they are small

}  // namespace

struct ConstraintCompiler::Waiter::Job {
  ConstraintText text;
  uint64_t client = 0;
  ThreadPriority priority = ThreadPriority::kIdle;
  bool has_thread = false;
  std::atomic<bool> unwanted{false};
  Clock::time_point turn_began = {};
  // Of a processor: in all, as its turn came, and as it gave way last.
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
  // Whoever asks for the same from now on asks anew.
  compiler.forget_job(*job_);
  job_->unwanted = true;
  const auto queue = compiler.waiting_.find(job_->client);
  if (queue != compiler.waiting_.end()) {
    std::erase(queue->second, job_);
    if (queue->second.empty()) compiler.waiting_.erase(queue);
  }
  compiler.changed_.notify_all();  // one that rests gives up
  compiler.report();
}

void ConstraintCompiler::forget_job(const Job& job) {
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
      kept_(limits.cache_bytes - limits.cache_bytes / kPartOfRefusals),
      refused_(limits.cache_bytes / kPartOfRefusals) {}

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
  if (auto known = remembered(text, client)) return known;
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

std::optional<ConstraintCompiler::Outcome> ConstraintCompiler::remembered(
    const ConstraintText& text, uint64_t client) {
  const Outcome* found = kept_.find(text, client);
  if (found == nullptr) found = refused_.find(text, client);
  if (found == nullptr) return std::nullopt;
  ++counts_.from_cache;
  report();
  return *found;
}

void ConstraintCompiler::add(const ConstraintText& text, uint64_t client) {
  make_threads();
  auto job = std::make_shared<Job>();
  job->text = text;
  job->client = client;
  waiting_[client].push_back(job);
  jobs_.emplace(text, std::move(job));
  if (turn_ == nullptr) pass_turn();
  report();
}

// As many of each priority as can have begun once one more is there: each is in one of these. By
// who asks, as what one of them makes has no higher priority than its own.
void ConstraintCompiler::make_threads() {
  const size_t clients = begun_.size() + waiting_.size() + 1;
  while (threads_.size() < 2 * std::min(clients, static_cast<size_t>(limits_.most_begun))) {
    const auto priority = threads_.size() % 2 == 0 ? ThreadPriority::kIdle : ThreadPriority::kLow;
    threads_.emplace_back([this, priority] { work(priority); });
  }
}

// The next client behind the last that has something to go on with, or to begin where there is room
// for one more.
std::shared_ptr<ConstraintCompiler::Job> ConstraintCompiler::whose_turn() const {
  const bool room = static_cast<int>(begun_.size()) < limits_.most_begun;
  std::shared_ptr<Job> first, next;  // of all clients; of those behind the last
  const auto consider = [&](const std::shared_ptr<Job>& job) {
    if (first == nullptr || job->client < first->client) first = job;
    if (job->client <= last_client_) return;
    if (next == nullptr || job->client < next->client) next = job;
  };
  for (const auto& [client, job] : begun_) consider(job);
  for (const auto& [client, queue] : waiting_) {
    if (room && !begun_.contains(client)) consider(queue.front());
  }
  return next != nullptr ? next : first;
}

void ConstraintCompiler::pass_turn() {
  turn_ = ending_ ? nullptr : whose_turn();
  if (turn_ == nullptr) return;
  last_client_ = turn_->client;
  turn_->slice_began = turn_->seconds;
  turn_->turn_began = Clock::now();
  const auto queue = waiting_.find(turn_->client);
  if (begun_.emplace(turn_->client, turn_).second) {
    queue->second.pop_front();
    if (queue->second.empty()) waiting_.erase(queue);
    // What is done once for all cannot be left in the middle.
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
      begin_again(*job);
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

// On the job's own thread, which has the turn. Seldom takes the mutex: whoever serves may wait for
// a thread that holds it, and this one gets a small share.
void ConstraintCompiler::rest(Job& job, double seconds) {
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
    rest(job, 0);
    if (library_ == nullptr) library_ = make_constraint_library(tokens_());
    return {.constraint =
                library_->compile(job.text, {.most_seconds = limits_.most_seconds,
                                             .look = [&](double seconds) { rest(job, seconds); },
                                             .client = job.client})};
  } catch (const CompileUnwanted&) {
    return {.full = true};  // which nobody hears
  } catch (const ConstraintRefused& refused) {
    return {.refusal = refused.what()};
  } catch (const std::bad_alloc&) {
    return {.full = true};
  } catch (const std::exception& error) {
    return {.refusal = "the constraint cannot be compiled: " + cut(error.what(), kMostRepeated)};
  }
}

// On a thread of the other priority, with the turn that the job has.
void ConstraintCompiler::begin_again(Job& job) {
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
  if (!outcome.full) remember(job, outcome);
  job.outcome = std::move(outcome);
  forget_job(job);
  if (reports_.compiled) reports_.compiled(seconds);
  report();
  // Under the lock: whoever forgets does not return while it is called.
  for (const auto& [number, done] : job.waiters) done();
}

void ConstraintCompiler::remember(const Job& job, const Outcome& outcome) {
  constexpr size_t kBeside = 512;  // what it takes of the allocator otherwise, about
  const bool is_refused = outcome.constraint == nullptr;
  const size_t bytes = is_refused ? outcome.refusal.size() : outcome.constraint->bytes();
  (is_refused ? refused_ : kept_)
      .keep(job.text, outcome, bytes + job.text.text.size() + kBeside, job.client);
}

void ConstraintCompiler::report() const {
  if (reports_.counts) reports_.counts(counts_now());
}

ConstraintCompiler::Counts ConstraintCompiler::counts_now() const {
  Counts counts = counts_;
  counts.waiting = static_cast<int>(jobs_.size());
  counts.cached_bytes = kept_.bytes() + refused_.bytes();
  return counts;
}

ConstraintCompiler::Counts ConstraintCompiler::counts() const {
  std::lock_guard lock(mutex_);
  return counts_now();
}

}  // namespace recurve
