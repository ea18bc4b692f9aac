#include "server/constraint/work_watch.h"

#include <fmt/format.h>

namespace recurve {

thread_local WorkWatch* WorkWatch::current = nullptr;

WorkWatch::WorkWatch(const CompileBounds& bounds, const char* remedy, size_t most_bytes)
    : bounds_(bounds), remedy_(remedy), began_(thread_seconds()), most_bytes_(most_bytes) {
  if (most_bytes > 0) memory_.emplace();
  current = this;
}
WorkWatch::~WorkWatch() { current = nullptr; }

void WorkWatch::check(size_t more) {
  if (current == nullptr) return;
  current->check_memory(more);
  current->check_time();
}

void WorkWatch::check_memory(size_t more) const {
  if (!memory_ ||
      memory_->bytes() + static_cast<int64_t>(more) <= static_cast<int64_t>(most_bytes_)) {
    return;
  }
  constexpr size_t kMiB = size_t{1} << 20;
  throw WorkRefused(
      fmt::format("it takes more than {} MB of memory {}", most_bytes_ / kMiB, remedy_));
}

void WorkWatch::check_time() {
  constexpr int kReadClockEvery = 256;
  if (++checks_ % kReadClockEvery != 0) return;
  const double seconds = thread_seconds() - began_;
  if (bounds_.on_progress) bounds_.on_progress(seconds);
  if (seconds < bounds_.most_seconds) return;
  throw WorkRefused(fmt::format("it takes more than {} s {}", bounds_.most_seconds, remedy_));
}

}  // namespace recurve
