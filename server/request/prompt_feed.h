#pragma once
#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace recurve {

// The rest of a streamed prompt, from a frontend to the engine. Neither side blocks: the engine
// leaves out a request without enough ids, and the frontend pushes more after results of earlier
// ids have come, so the contents are bounded. Owned by both, like TokenStream in the other
// direction.
class PromptFeed {
 public:
  using Duration = std::chrono::steady_clock::duration;

  // A request without ids for `patience` is ended, to free its slot.
  explicit PromptFeed(Duration patience) : patience_(patience) {}
  Duration patience() const { return patience_; }

  // The frontend's side. Call AdmissionQueue::wake() afterwards: the engine may be asleep.
  void push(std::span<const int32_t> ids) {
    std::lock_guard lock(mutex_);
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }
  void close() {  // no more ids
    std::lock_guard lock(mutex_);
    closed_ = true;
  }

  // Engine side. Appends the ids that have arrived; false after the last ones.
  bool take(std::vector<int32_t>* ids) {
    std::lock_guard lock(mutex_);
    ids->insert(ids->end(), ids_.begin(), ids_.end());
    ids_.clear();
    return !closed_;
  }

 private:
  const Duration patience_;
  std::mutex mutex_;
  std::vector<int32_t> ids_;
  bool closed_ = false;
};

}  // namespace recurve
