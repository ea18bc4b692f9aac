#include "server/constraint/guide.h"

#include <pthread.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "server/constraint/constraint_library.h"

namespace recurve {
namespace {

// Of a processor, on one mask; with 131,072 ids most take a fourth of it.
constexpr double kSlow = 0.005;  // seconds

constexpr const char* kDeadEnd =
    "no token that is allowed may come next, and the text may not end here: ask for what the "
    "model's tokens can write";

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

void Guide::work() {
  const double began = thread_seconds();
  bool goes_on = false;
  try {
    if (matcher_ == nullptr) matcher_ = constraint_->begin();
    goes_on = accepted_ < 0 || matcher_->accept(accepted_);
    if (goes_on) fill();
  } catch (const ConstraintRefused& refused) {
    error_ = std::string("the constraint cannot be followed: ") + refused.what();
    goes_on = false;
  } catch (const std::exception&) {  // no memory, or the library at its end
    goes_on = false;
  }
  // With an empty mask the answer ends with an error, and no other is touched.
  if (!goes_on) std::ranges::fill(mask_, 0);
  if (thread_seconds() - began > kSlow) slow_ = true;
  ready_.store(true, std::memory_order_release);
}

void Guide::fill() {
  matcher_->fill(mask_);
  for (const int32_t id : rules_->ends) remove_id(id, mask_);
  for (size_t w = 0; w < allowed_.size(); ++w) mask_[w] &= allowed_[w];
  const bool goes_on = std::ranges::any_of(mask_, [](uint32_t word) { return word != 0; });
  if (!matcher_->may_end()) {
    if (!goes_on) throw ConstraintRefused(kDeadEnd);
    return;
  }
  if (goes_on && tokens_ < rules_->min_tokens) return;
  for (const int32_t id : rules_->ends) add_id(id, mask_);
}

MaskWorkers::~MaskWorkers() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void MaskWorkers::post(std::shared_ptr<Guide> guide) {
  {
    std::lock_guard lock(mutex_);
    (guide->slow_ ? slow_ : guides_).push_back(std::move(guide));
    ++under_way_;
    while (static_cast<int>(threads_.size()) < threads_wanted_) {
      threads_.emplace_back([this] { work(); });
    }
  }
  changed_.notify_one();
}

void MaskWorkers::wait(std::chrono::nanoseconds most, int left) {
  std::unique_lock lock(mutex_);
  left_ = left;
  done_.wait_for(lock, most, [this] { return under_way_ <= left_; });
}

void MaskWorkers::work() {
  pthread_setname_np(pthread_self(), "masks");
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !guides_.empty() || slow_may_begin(); });
    if (ending_) return;
    const bool slow = guides_.empty();
    auto& queue = slow ? slow_ : guides_;
    const std::shared_ptr<Guide> guide = std::move(queue.front());
    queue.pop_front();
    slow_under_way_ += slow;
    lock.unlock();
    guide->work();
    lock.lock();
    slow_under_way_ -= slow;
    if (--under_way_ <= left_) done_.notify_all();
    lock.unlock();
    on_ready_();
    lock.lock();
  }
}

}  // namespace recurve
