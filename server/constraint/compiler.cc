#include "server/constraint/compiler.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <new>
#include <utility>

namespace recurve {

struct ConstraintCompiler::Waiter::Job {
  ConstraintText text;
  uint64_t client = 0;
  bool began = false;
  std::atomic<bool> unwanted{false};
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
  std::lock_guard lock(compiler_->mutex_);
  job_->waiters.erase(number_);
  if (job_->waiters.empty() && job_->began) {
    // Whoever asks for the same from now on asks anew.
    job_->unwanted = true;
    compiler_->forget_job(*job_);
  } else if (job_->waiters.empty()) {
    auto& queue = compiler_->waiting_[job_->client];
    std::erase(queue, job_);
    if (queue.empty()) compiler_->waiting_.erase(job_->client);
    compiler_->forget_job(*job_);
  }
  compiler_ = nullptr;
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

ConstraintCompiler::ConstraintCompiler(std::function<TokenTexts()> tokens, CompileLimits limits)
    : tokens_(std::move(tokens)), limits_(limits) {}

ConstraintCompiler::~ConstraintCompiler() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    if (under_way_ != nullptr) under_way_->unwanted = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::optional<ConstraintCompiler::Outcome> ConstraintCompiler::compile(const ConstraintText& text,
                                                                       uint64_t client,
                                                                       std::function<void()> done,
                                                                       Waiter* waiter) {
  std::lock_guard lock(mutex_);
  if (auto known = remembered(text)) return known;
  auto found = jobs_.find(text);
  if (found == jobs_.end()) {
    const auto mine = waiting_.find(client);
    const size_t of_mine = mine == waiting_.end() ? 0 : mine->second.size();
    if (static_cast<int>(jobs_.size()) >= limits_.most_waiting ||
        static_cast<int>(of_mine) >= limits_.most_of_one) {
      return Outcome{.full = true};
    }
    auto job = std::make_shared<Job>();
    job->text = text;
    job->client = client;
    waiting_[client].push_back(job);
    found = jobs_.emplace(text, std::move(job)).first;
    if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
    changed_.notify_one();
  }
  found->second->waiters.emplace(++waiters_, std::move(done));
  *waiter = Waiter(this, found->second, waiters_);
  return std::nullopt;
}

std::optional<ConstraintCompiler::Outcome> ConstraintCompiler::remembered(
    const ConstraintText& text) {
  const auto found = kept_at_.find(text);
  if (found == kept_at_.end()) return std::nullopt;
  kept_.splice(kept_.begin(), kept_, found->second);
  ++counts_.from_cache;
  return found->second->outcome;
}

void ConstraintCompiler::work() {
  pthread_setname_np(pthread_self(), "constraints");
  const sched_param none{};
  pthread_setschedparam(pthread_self(), SCHED_IDLE, &none);
  while (const std::shared_ptr<Job> job = next_job()) {
    const Clock::time_point began = Clock::now();
    Outcome outcome = outcome_of(*job);
    finish(*job, std::move(outcome), std::chrono::duration<double>(Clock::now() - began).count());
  }
}

// Clients take turns: the next one behind the last that has something waiting.
std::shared_ptr<ConstraintCompiler::Job> ConstraintCompiler::next_job() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
  if (ending_) return nullptr;
  auto queue = waiting_.upper_bound(last_client_);
  if (queue == waiting_.end()) queue = waiting_.begin();
  last_client_ = queue->first;
  std::shared_ptr<Job> job = std::move(queue->second.front());
  queue->second.pop_front();
  if (queue->second.empty()) waiting_.erase(queue);
  job->began = true;
  under_way_ = job;
  return job;
}

ConstraintCompiler::Outcome ConstraintCompiler::outcome_of(const Job& job) {
  try {
    if (library_ == nullptr) library_ = make_constraint_library(tokens_());
    return {.constraint = library_->compile(
                job.text, {.most_seconds = limits_.most_seconds, .unwanted = &job.unwanted})};
  } catch (const CompileUnwanted&) {
    return {.full = true};  // which nobody hears
  } catch (const ConstraintRefused& refused) {
    return {.refusal = refused.what()};
  } catch (const std::bad_alloc&) {
    return {.full = true};
  } catch (const std::exception& error) {
    return {.refusal = std::string("the constraint cannot be compiled: ") + error.what()};
  }
}

void ConstraintCompiler::finish(Job& job, Outcome outcome, double seconds) {
  std::lock_guard lock(mutex_);
  under_way_ = nullptr;
  const bool given_up = outcome.full && job.unwanted;
  ++(outcome.constraint != nullptr ? counts_.compiled
     : given_up                    ? counts_.given_up
                                   : counts_.refused);
  counts_.slowest_seconds = std::max(counts_.slowest_seconds, seconds);
  if (!outcome.full) remember(job.text, outcome);
  job.outcome = std::move(outcome);
  forget_job(job);
  // Under the lock: whoever forgets does not return while it is called.
  for (const auto& [number, done] : job.waiters) done();
}

void ConstraintCompiler::remember(const ConstraintText& text, const Outcome& outcome) {
  const auto bytes_of = [](const Outcome& of) {
    return of.constraint != nullptr ? of.constraint->bytes() : of.refusal.size();
  };
  kept_.push_front({text, outcome});
  kept_at_[text] = kept_.begin();
  kept_bytes_ += bytes_of(outcome) + text.text.size();
  kept_refusals_ += outcome.constraint == nullptr;
  while (!kept_.empty() &&
         (kept_bytes_ > limits_.cache_bytes || kept_refusals_ > limits_.most_refusals)) {
    const Kept& last = kept_.back();
    kept_bytes_ -= bytes_of(last.outcome) + last.text.text.size();
    kept_refusals_ -= last.outcome.constraint == nullptr;
    kept_at_.erase(last.text);
    kept_.pop_back();
  }
}

ConstraintCompiler::Counts ConstraintCompiler::counts() const {
  std::lock_guard lock(mutex_);
  Counts counts = counts_;
  counts.waiting = static_cast<int>(jobs_.size());
  counts.cached_bytes = kept_bytes_;
  return counts;
}

}  // namespace recurve
