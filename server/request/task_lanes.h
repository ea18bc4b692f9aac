#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <map>
#include <optional>

#include "server/identity/identity.h"

namespace recurve {

// What waits to be run, of different lengths: which is next is decided here, and nothing else.
//
// Tasks wait in lanes by the bytes that they read; within a lane, those of several groups by turns,
// and so those of the shares of a group; those of one share in the order of their coming. Every
// second task is one of the shortest lane, every fourth of the next, and so on, or of a shorter one
// where there is none, or else of a longer one: short ones hardly wait for long ones, and long ones
// do not wait for ever. A task cannot be taken from the thread that runs it, so some are so long
// that they may not have all threads.
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
  size_t waiting_of_group(int lane, TenantId share) const { return at(lane).size_of_group(share); }
  // share: whose it is, see Identity; 0 also where there are no shares.
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
  // Those of one share, or the shares of one group, by turns.
  template <typename Of>
  struct Turns {
    std::map<TenantId, Of> all = {};
    TenantId last = 0;  // whose turn it was

    // The one whose turn it is; there is one.
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
    // There is one.
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
    // A task is gone; a share of which none waits goes with it.
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
