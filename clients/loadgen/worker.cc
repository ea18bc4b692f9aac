#include "clients/loadgen/worker.h"

#include <pthread.h>
#include <time.h>

#include "clients/loadgen/user.h"

namespace recurve::loadgen {

// An alarm that is due at once: what passes until its turn is what an answer waits too.
class Worker::Probe final : public Event {
 public:
  Probe(const Stopwatch& watch, grpc::CompletionQueue* queue) : watch_(watch), queue_(queue) {}

  void ask() {
    std::lock_guard lock(mutex_);
    if (under_way_) return;
    under_way_ = true;
    asked_ = watch_.now();
    alarm_.Set(queue_, gpr_now(GPR_CLOCK_MONOTONIC), static_cast<Event*>(this));
  }
  void on_event(bool) override {
    std::lock_guard lock(mutex_);
    under_way_ = false;
    delays_.record(watch_.now() - asked_);
  }
  Histogram delays() const {
    std::lock_guard lock(mutex_);
    return delays_;
  }

 private:
  const Stopwatch& watch_;
  grpc::CompletionQueue* queue_;
  grpc::Alarm alarm_;
  mutable std::mutex mutex_;
  bool under_way_ = false;
  double asked_ = 0;
  Histogram delays_;
};

Worker::Worker(const Endpoint& endpoint, const Stopwatch& watch, Window window, ServiceLevel level)
    : watch_(watch),
      connection_(endpoint),
      inference_(v1::Inference::NewStub(connection_.channel())),
      sessions_(v1::Sessions::NewStub(connection_.channel())),
      recorder_(window, level),
      probe_(std::make_unique<Probe>(watch_, &queue_)),
      thread_([this] { run(); }) {}

Worker::~Worker() {
  queue_.Shutdown();
  thread_.join();
}

void Worker::run() {
  void* tag = nullptr;
  for (bool ok = false; queue_.Next(&tag, &ok);) static_cast<Event*>(tag)->on_event(ok);
}

User* Worker::adopt(std::unique_ptr<User> user) {
  User* const raw = user.get();
  std::lock_guard lock(mutex_);
  users_.emplace(raw, std::move(user));
  return raw;
}

void Worker::release(User* user) {
  std::unique_ptr<User> last;  // outlives the lock
  std::lock_guard lock(mutex_);
  const auto found = users_.find(user);
  last = std::move(found->second);
  users_.erase(found);
}

void Worker::cancel_users() {
  std::lock_guard lock(mutex_);
  for (const auto& [user, owned] : users_) user->cancel();
}

size_t Worker::user_count() const {
  std::lock_guard lock(mutex_);
  return users_.size();
}

void Worker::probe() { probe_->ask(); }
Histogram Worker::handling_delay() const { return probe_->delays(); }

double Worker::cpu_seconds() const {
  clockid_t clock;
  timespec time{};
  if (pthread_getcpuclockid(thread_.native_handle(), &clock) != 0) return 0;
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace recurve::loadgen
