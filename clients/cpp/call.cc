#include "clients/cpp/call.h"

namespace recurve {

void Canceller::cancel() {
  std::lock_guard lock(mutex_);
  cancelled_ = true;
  changed_.notify_all();
  if (context_) context_->TryCancel();
}

bool Canceller::cancelled() const {
  std::lock_guard lock(mutex_);
  return cancelled_;
}

bool Canceller::wait_for(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [this] { return cancelled_; });
}

Call::Call(const CallOptions& options) : canceller_(options.canceller) {
  using Clock = std::chrono::system_clock;
  constexpr std::chrono::hours kForEver(24 * 365 * 10);  // more would not fit the clock's type
  if (options.timeout && *options.timeout < kForEver) {
    context_.set_deadline(Clock::now() +
                          std::chrono::duration_cast<Clock::duration>(*options.timeout));
  }
  if (!canceller_) return;
  std::lock_guard lock(canceller_->mutex_);
  canceller_->context_ = &context_;
  if (canceller_->cancelled_) context_.TryCancel();
}

Call::~Call() {
  if (!canceller_) return;
  std::lock_guard lock(canceller_->mutex_);
  canceller_->context_ = nullptr;
}

}  // namespace recurve
