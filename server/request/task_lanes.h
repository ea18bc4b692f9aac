#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

#include "server/identity/identity.h"

namespace recurve {

// What waits to be run, of different lengths: which is next is decided here, and nothing else.
//
// Tasks wait in lanes by the bytes that they read; within a lane, those of several tenants by
// turns, and those of one in the order of their coming. Every second task is one of the shortest
// lane, every fourth of the next, and so on, or of a shorter one where there is none, or else of a
// longer one: short ones hardly wait for long ones, and long ones do not wait for ever. A task
// cannot be taken from the thread that runs it, so some are so long that they may not have all
// threads.
template <typename Task>
class TaskLanes {
 public:
  // Most bytes of a task in each lane but the last.
  static constexpr std::array<size_t, 3> kMostBytes = {4 << 10, 64 << 10, 1 << 20};
  static constexpr int kLanes = kMostBytes.size() + 1;
  static constexpr int kLongLane = 2;  // from here on they are long

  struct Next {
    Task* task = nullptr;
    bool is_long = false;
  };

  static int lane_of(size_t bytes) {
    int lane = 0;
    while (lane + 1 < kLanes && bytes > kMostBytes[static_cast<size_t>(lane)]) ++lane;
    return lane;
  }

  size_t waiting(int lane) const { return at(lane).size(); }
  size_t waiting(int lane, TenantId share) const { return at(lane).size(share); }
  // share: whose it is, see Identity; 0 also where nobody shares.
  void push(Task* task, int lane, TenantId share = 0) { at(lane).push(task, share); }

  // Null where none waits, or only long ones do and they may not run.
  Next pop(bool may_be_long) {
    const int last = may_be_long ? kLanes : kLongLane;
    const int turn = turn_of(++turns_);
    for (int lane = turn < last ? turn : 0; lane >= 0; --lane) {
      if (!at(lane).empty()) return take(lane);
    }
    for (int lane = 0; lane < last; ++lane) {
      if (!at(lane).empty()) return take(lane);
    }
    return {};
  }

  // Moves a task to the shortest lane, if it waits.
  void hasten(const Task* task) {
    for (Lane& lane : lanes_) {
      if (const auto found = lane.erase(task)) return push(found->task, 0, found->share);
    }
  }

 private:
  struct Shared {
    Task* task = nullptr;
    TenantId share = 0;
  };
  // One of the lanes.
  class Lane {
   public:
    bool empty() const { return size_ == 0; }
    size_t size() const { return size_; }
    size_t size(TenantId share) const {
      const auto found = std::ranges::find(queues_, share, &Queue::share);
      return found == queues_.end() ? 0 : found->tasks.size();
    }
    void push(Task* task, TenantId share) {
      auto found = std::ranges::find(queues_, share, &Queue::share);
      if (found == queues_.end()) found = queues_.insert(found, Queue{.share = share});
      found->tasks.push_back(task);
      ++size_;
    }
    // There is one.
    Task* pop() {
      if (next_ >= queues_.size()) next_ = 0;
      while (queues_[next_].tasks.empty()) next_ = (next_ + 1) % queues_.size();
      Queue& queue = queues_[next_];
      Task* const task = queue.tasks.front();
      queue.tasks.pop_front();
      --size_;
      leave(next_);
      return task;
    }
    std::optional<Shared> erase(const Task* task) {
      for (size_t at = 0; at < queues_.size(); ++at) {
        auto& tasks = queues_[at].tasks;
        const auto found = std::ranges::find(tasks, task);
        if (found == tasks.end()) continue;
        const Shared erased{*found, queues_[at].share};
        tasks.erase(found);
        --size_;
        if (tasks.empty()) drop(at);
        return erased;
      }
      return {};
    }

   private:
    struct Queue {
      TenantId share = 0;
      std::deque<Task*> tasks = {};
    };
    // The turn is over. That of share 0, which most have, is kept where nothing waits.
    void leave(size_t at) {
      ++next_;
      if (queues_[at].tasks.empty()) drop(at);
    }
    void drop(size_t at) {
      if (queues_[at].share == 0) return;
      queues_.erase(queues_.begin() + static_cast<std::ptrdiff_t>(at));
      if (at < next_) --next_;
    }

    std::vector<Queue> queues_;
    size_t next_ = 0, size_ = 0;
  };

  // 0 1 0 2 0 1 0 3 ...
  static int turn_of(unsigned turn) {
    int lane = 0;
    while (lane + 1 < kLanes && turn % 2 == 0) turn /= 2, ++lane;
    return lane;
  }
  Next take(int lane) { return {at(lane).pop(), lane >= kLongLane}; }
  Lane& at(int lane) { return lanes_[static_cast<size_t>(lane)]; }
  const Lane& at(int lane) const { return lanes_[static_cast<size_t>(lane)]; }

  std::array<Lane, kLanes> lanes_;
  unsigned turns_ = 0;
};

}  // namespace recurve
