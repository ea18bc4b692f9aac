#include "kernels/copier.h"

#include <exception>
#include <stdexcept>
#include <utility>

namespace recurve {

Copier::Copier(Backend& backend, std::function<void()> on_done)
    : backend_(backend), on_done_(std::move(on_done)), thread_([this] { run(); }) {}

Copier::~Copier() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Copier::Ticket Copier::start(Job job, Stream& after) {
  throw_if_failed();
  std::unique_ptr<Event> event = take_event();
  event->record(after);
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back({std::move(job), std::move(event)});
  }
  changed_.notify_all();
  return ++last_;
}

std::unique_ptr<Event> Copier::take_event() {
  {
    const std::lock_guard lock(mutex_);
    if (!events_.empty()) {
      std::unique_ptr<Event> event = std::move(events_.back());
      events_.pop_back();
      return event;
    }
    events_.reserve(++all_events_);  // so that it can be given back
  }
  return backend_.make_event();
}

bool Copier::done(Ticket ticket) const {
  if (ticket <= done_.load(std::memory_order_acquire)) return true;
  throw_if_failed();
  return false;
}

void Copier::wait(Ticket ticket) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ticket <= done_ || failed_; });
  }
  done(ticket);
}

void Copier::wait_for_all() noexcept {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return waiting_.empty() && !copying_; });
}

void Copier::throw_if_failed() const {
  if (!failed_) return;
  const std::lock_guard lock(mutex_);
  throw std::runtime_error("a state could not be copied: " + failure_);
}

void Copier::run() {
  std::unique_ptr<Stream> stream;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closed_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    Work work = std::move(waiting_.front());
    waiting_.pop_front();
    copying_ = true;
    lock.unlock();
    const bool made = !failed_ && make(work, &stream);
    work.job = {};  // what it kept may go, before anybody hears that it is done
    lock.lock();
    copying_ = false;
    events_.push_back(std::move(work.after));
    if (made) done_.fetch_add(1, std::memory_order_release);
    lock.unlock();
    changed_.notify_all();
    if (on_done_) on_done_();
    lock.lock();
  }
}

// False if it has failed.
bool Copier::make(const Work& work, std::unique_ptr<Stream>* stream) {
  try {
    if (*stream == nullptr) *stream = backend_.make_copy_stream();
    if (work.job.before) work.job.before();
    backend_.begin_after(*work.after, **stream);
    backend_.copy_pieces(work.job.pieces, **stream);
    (*stream)->wait();
    return true;
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    failure_ = error.what();
    failed_ = true;
    return false;
  }
}

}  // namespace recurve
