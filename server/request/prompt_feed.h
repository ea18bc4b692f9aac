#pragma once
#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace recurve {

// The rest of a prompt that is still being sent, on its way from a frontend to the engine, which
// absorbs what there is meanwhile. Neither side waits for the other: the engine passes over a
// request without enough to absorb, and the frontend gives more when it has seen what became of
// what it gave, so that what lies here is bounded. Shared by both, as TokenStream is the other way.
class PromptFeed {
 public:
  using Duration = std::chrono::steady_clock::duration;

  // A request that had nothing to absorb for as long as `patience` is ended: its slot is wanted.
  explicit PromptFeed(Duration patience) : patience_(patience) {}
  Duration patience() const { return patience_; }

  // The frontend's side. Call AdmissionQueue::wake() afterwards: the engine may be asleep.
  void push(std::span<const int32_t> ids) {
    std::lock_guard lock(mutex_);
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }
  void close() {  // that was all
    std::lock_guard lock(mutex_);
    closed_ = true;
  }

  // Engine side. Appends what has come; false once nothing more will.
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
