#include "clients/loadgen/pacer.h"

namespace recurve::loadgen {

void Pacer::at(double time, std::function<void()> action) {
  {
    std::lock_guard lock(mutex_);
    entries_.push({time, count_++, std::move(action)});
  }
  changed_.notify_one();
}

void Pacer::hurry() {
  {
    std::lock_guard lock(mutex_);
    hurry_ = true;
  }
  changed_.notify_one();
}

void Pacer::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Pacer::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (entries_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const double due = entries_.top().time;
    if (!hurry_ && watch_.now() < due) {
      changed_.wait_until(lock, watch_.at(due));
      continue;
    }
    note_lateness(due);
    // top() is constant, but what it refers to leaves in the next line.
    const std::function<void()> action = std::move(const_cast<Entry&>(entries_.top()).action);
    entries_.pop();
    lock.unlock();
    action();
    lock.lock();
  }
  if (!entries_.empty()) note_lateness(entries_.top().time);
}

void Pacer::note_lateness(double due) {
  const double late = watch_.now() - due;
  if (late >= 0) lateness_.record(late);  // in a hurry, or at the end, it may not be due yet
}

}  // namespace recurve::loadgen
