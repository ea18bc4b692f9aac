#include "server/constraint/guide.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "server/constraint/constraint_library.h"
#include "server/constraint/thread_priority.h"

namespace recurve {
namespace {

// Processor time of a slow mask, in seconds. With 131,072 ids most take a quarter of it.
constexpr double kSlow = 0.005;

// Processor time for one mask, in seconds, after which a thread gets a low priority; most first
// masks of 131,072 ids take less. Each such thread can use a tenth of a processor, so there are
// few.
constexpr double kLowerAfter = 0.0002;
constexpr int kMostLow = 2;

constexpr const char* kDeadEnd =
    "no allowed token can continue the text, and it may not end here: use a constraint that the "
    "model's tokens can satisfy";

void add_id(int32_t id, std::span<uint32_t> set) {
  set[static_cast<size_t>(id) / 32] |= uint32_t{1} << (static_cast<size_t>(id) % 32);
}
void remove_id(int32_t id, std::span<uint32_t> set) {
  set[static_cast<size_t>(id) / 32] &= ~(uint32_t{1} << (static_cast<size_t>(id) % 32));
}

}  // namespace

Guide::Guide(std::shared_ptr<const Constraint> constraint, GuideRules rules)
    : constraint_(std::move(constraint)),
      rules_(std::make_shared<const GuideRules>(std::move(rules))),
      mask_((static_cast<size_t>(rules_->ids) + 31) / 32) {
  if (rules_->allowed.empty()) return;
  allowed_.resize(mask_.size());
  for (const int32_t id : rules_->allowed) add_id(id, allowed_);
}

Guide::Guide(const Guide& other, std::unique_ptr<Matcher> matcher)
    : enable_shared_from_this(),
      constraint_(other.constraint_),
      matcher_(std::move(matcher)),
      rules_(other.rules_),
      allowed_(other.allowed_),
      mask_(other.mask_),
      tokens_(other.tokens_),
      ready_(true) {}

std::shared_ptr<Guide> Guide::fork() const {
  return std::shared_ptr<Guide>(new Guide(*this, matcher_->fork()));
}

void Guide::begin(MaskWorkers& workers) { workers.post(shared_from_this()); }

void Guide::accept(int32_t id, MaskWorkers& workers) {
  ready_.store(false, std::memory_order_relaxed);
  accepted_ = id;
  ++tokens_;
  workers.post(shared_from_this());
}

void Guide::work(double began) {
  bool can_continue = false;
  try {
    if (matcher_ == nullptr) matcher_ = constraint_->begin(rules_->client);
    can_continue = accepted_ < 0 || matcher_->accept(accepted_);
    if (can_continue) fill();
  } catch (const ConstraintRefused& refused) {
    error_ = std::string("the constraint cannot be followed: ") + refused.what();
    can_continue = false;
  } catch (const std::exception&) {  // out of memory, or an error of the library
    can_continue = false;
  }
  // An empty mask ends the answer with an error, and affects no other answer.
  if (!can_continue) std::ranges::fill(mask_, 0);
  if (thread_seconds() - began > kSlow) slow_ = true;
  ready_.store(true, std::memory_order_release);
}

void Guide::fill() {
  matcher_->fill(mask_);
  for (const int32_t id : rules_->ends) remove_id(id, mask_);
  for (size_t w = 0; w < allowed_.size(); ++w) mask_[w] &= allowed_[w];
  const bool can_continue = std::ranges::any_of(mask_, [](uint32_t word) { return word != 0; });
  if (!matcher_->may_end()) {
    if (!can_continue) throw ConstraintRefused(kDeadEnd);
    return;
  }
  if (can_continue && tokens_ < rules_->min_tokens) return;
  for (const int32_t id : rules_->ends) add_id(id, mask_);
}

MaskWorkers::~MaskWorkers() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (Worker& worker : workers_) worker.thread.join();
}

void MaskWorkers::post(std::shared_ptr<Guide> guide) {
  {
    std::lock_guard lock(mutex_);
    (guide->slow_ ? slow_ : guides_).push_back(std::move(guide));
    ++unfinished_;
    add_workers();
  }
  changed_.notify_one();
}

// New threads have the priority of the calling thread. Those that cannot start are tried again with
// the next mask or step.
void MaskWorkers::add_workers() {
  std::erase_if(workers_, [](Worker& worker) {
    if (worker.ended) worker.thread.join();
    return worker.ended;
  });
  while (static_cast<int>(workers_.size()) - low_ < threads_wanted_) {
    Worker& worker = workers_.emplace_back();
    try {
      worker.thread = std::thread([this, &worker] { work(worker); });
    } catch (const std::system_error&) {
      workers_.pop_back();
      return;
    }
  }
}

void MaskWorkers::wait(std::chrono::nanoseconds most, int allowed_late) {
  std::unique_lock lock(mutex_);
  if (unfinished_ > 0) add_workers();
  allowed_late_ = allowed_late;
  if (!done_.wait_for(lock, most, [this] { return unfinished_ <= allowed_late_; }))
    lower_slow_ones();
}

void MaskWorkers::lower_slow_ones() {
  bool lowered = false;
  for (Worker& worker : workers_) {
    if (worker.low || !worker.began || low_ == kMostLow) continue;
    if (thread_seconds(worker.clock) - *worker.began < kLowerAfter) continue;
    set_priority(worker.number, ThreadPriority::kLow);
    worker.low = lowered = true;
    ++low_;
  }
  if (lowered) add_workers();
}

void MaskWorkers::work(Worker& self) {
  pthread_setname_np(pthread_self(), "masks");
  std::unique_lock lock(mutex_);
  self.number = gettid();
  pthread_getcpuclockid(pthread_self(), &self.clock);
  while (!self.low) {
    changed_.wait(lock, [this] { return ending_ || !guides_.empty() || slow_may_begin(); });
    if (ending_) return;
    const bool slow = guides_.empty();
    auto& queue = slow ? slow_ : guides_;
    const std::shared_ptr<Guide> guide = std::move(queue.front());
    queue.pop_front();
    slow_running_ += slow;
    const double began = thread_seconds();
    self.began = began;
    lock.unlock();
    guide->work(began);
    lock.lock();
    self.began.reset();
    slow_running_ -= slow;
    if (--unfinished_ <= allowed_late_) done_.notify_all();
    lock.unlock();
    on_ready_();
    lock.lock();
  }
  --low_;
  self.ended = true;
  changed_.notify_one();  // a slow mask may have waited for this thread
}

}  // namespace recurve
