#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <map>
#include <optional>

#include "server/identity/identity.h"

namespace recurve {

// A queue of tasks of different lengths, which decides the next task to run.
// Tasks wait in lanes by the bytes that they read. In a lane, groups take turns, then the shares of
// a group; tasks of a share are in the order of arrival. Every second task is from the shortest
// lane, every fourth from the next, and so on. If that lane is empty, a shorter one is used, else a
// longer one. So short tasks hardly wait for long ones, and long ones do not starve. Running tasks
// are not preempted, so tasks of the long lanes may not occupy all threads.
template <typename Task>
class TaskLanes {
 public:
  // Maximum bytes of a task, for each lane but the last.
  static constexpr std::array<size_t, 3> kMostBytes = {4 << 10, 64 << 10, 1 << 20};
  static constexpr int kLanes = kMostBytes.size() + 1;
  static constexpr int kLongLane = 2;  // tasks of this and later lanes are long

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
  size_t waiting_of_group(int lane, TenantId share) const { return at(lane).size_of_group(share); }
  // share: Identity::share(); 0: none.
  void push(Task* task, int lane, TenantId share = 0) { at(lane).push(task, share); }

  // Null if no task waits that may run.
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

  // Moves a waiting task to the shortest lane.
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
  // The tasks of a share, or the shares of a group, which take turns.
  template <typename Of>
  struct Turns {
    std::map<TenantId, Of> all = {};
    TenantId last = 0;  // had the last turn

    // The next in turn. Must not be empty.
    auto next() {
      const auto behind = all.upper_bound(last);
      return behind == all.end() ? all.begin() : behind;
    }
  };
  using Queue = std::deque<Task*>;
  using Group = Turns<Queue>;

  // One of the lanes.
  class Lane {
   public:
    bool empty() const { return size_ == 0; }
    size_t size() const { return size_; }
    size_t size(TenantId share) const {
      const auto group = groups_.all.find(group_of(share));
      if (group == groups_.all.end()) return 0;
      const auto found = group->second.all.find(share);
      return found == group->second.all.end() ? 0 : found->second.size();
    }
    size_t size_of_group(TenantId share) const {
      const auto group = groups_.all.find(group_of(share));
      if (group == groups_.all.end()) return 0;
      size_t size = 0;
      for (const auto& [of, queue] : group->second.all) size += queue.size();
      return size;
    }
    void push(Task* task, TenantId share) {
      groups_.all[group_of(share)].all[share].push_back(task);
      ++size_;
    }
    // Must not be empty.
    Task* pop() {
      const auto group = groups_.next();
      const auto queue = group->second.next();
      groups_.last = group->first;
      group->second.last = queue->first;
      Task* const task = queue->second.front();
      queue->second.pop_front();
      drop_if_empty(group, queue);
      return task;
    }
    std::optional<Shared> erase(const Task* task) {
      for (auto group = groups_.all.begin(); group != groups_.all.end(); ++group) {
        for (auto queue = group->second.all.begin(); queue != group->second.all.end(); ++queue) {
          const auto found = std::ranges::find(queue->second, task);
          if (found == queue->second.end()) continue;
          const Shared erased{*found, queue->first};
          queue->second.erase(found);
          drop_if_empty(group, queue);
          return erased;
        }
      }
      return {};
    }

   private:
    // Counts a removed task; removes its share and group if they are empty.
    void drop_if_empty(std::map<TenantId, Group>::iterator group,
                       std::map<TenantId, Queue>::iterator queue) {
      --size_;
      if (!queue->second.empty()) return;
      group->second.all.erase(queue);
      if (group->second.all.empty()) groups_.all.erase(group);
    }

    Turns<Group> groups_;
    size_t size_ = 0;
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
