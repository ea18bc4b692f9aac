#include "server/request/admission_queue.h"

#include <utility>

namespace recurve {
namespace {
// Bound of session commands that wait for the end of a step.
constexpr size_t kMaxCommands = 4096;
}  // namespace

AdmissionQueue::Admission AdmissionQueue::push(Request request) {
  std::lock_guard lock(mutex_);
  if (closed_) return Admission::kClosed;
  if (waiting_ >= max_waiting_) return Admission::kFull;
  arrivals_.requests.push_back(std::move(request));
  ++waiting_;
  news_ = true;
  changed_.notify_one();
  return Admission::kAccepted;
}

AdmissionQueue::Admission AdmissionQueue::post(SessionCommand command) {
  std::lock_guard lock(mutex_);
  if (closed_) return Admission::kClosed;
  if (arrivals_.commands.size() >= kMaxCommands) return Admission::kFull;
  arrivals_.commands.push_back(std::move(command));
  news_ = true;
  changed_.notify_one();
  return Admission::kAccepted;
}

void AdmissionQueue::wake() {
  std::lock_guard lock(mutex_);
  news_ = true;
  changed_.notify_one();
}

void AdmissionQueue::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  news_ = true;
  changed_.notify_one();
}

int AdmissionQueue::waiting() const {
  std::lock_guard lock(mutex_);
  return waiting_;
}

AdmissionQueue::Arrivals AdmissionQueue::take() {
  std::lock_guard lock(mutex_);
  news_ = false;
  return std::exchange(arrivals_, {});
}

bool AdmissionQueue::done() const {
  std::lock_guard lock(mutex_);
  return closed_ && arrivals_.requests.empty() && arrivals_.commands.empty();
}

void AdmissionQueue::count_removed(int requests) {
  std::lock_guard lock(mutex_);
  waiting_ -= requests;
}

void AdmissionQueue::count_requeued() {
  std::lock_guard lock(mutex_);
  ++waiting_;
}

void AdmissionQueue::wait(std::optional<Clock::time_point> until) {
  std::unique_lock lock(mutex_);
  const auto news = [this] { return news_; };
  if (until) {
    changed_.wait_until(lock, *until, news);
  } else {
    changed_.wait(lock, news);
  }
}

}  // namespace recurve
