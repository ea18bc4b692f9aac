#pragma once
#include <array>
#include <cstddef>
#include <deque>

namespace recurve {

// What waits to be run, of different lengths: which is next is decided here, and nothing else.
//
// Tasks wait in lanes by the bytes that they read, each lane in the order of its coming. Every
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
  void push(Task* task, int lane) { at(lane).push_back(task); }

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
    for (auto& lane : lanes_) {
      for (auto it = lane.begin(); it != lane.end(); ++it) {
        if (*it != task) continue;
        Task* const found = *it;
        lane.erase(it);
        return push(found, 0);
      }
    }
  }

 private:
  // 0 1 0 2 0 1 0 3 ...
  static int turn_of(unsigned turn) {
    int lane = 0;
    while (lane + 1 < kLanes && turn % 2 == 0) turn /= 2, ++lane;
    return lane;
  }
  Next take(int lane) {
    Task* const task = at(lane).front();
    at(lane).pop_front();
    return {task, lane >= kLongLane};
  }
  std::deque<Task*>& at(int lane) { return lanes_[static_cast<size_t>(lane)]; }
  const std::deque<Task*>& at(int lane) const { return lanes_[static_cast<size_t>(lane)]; }

  std::array<std::deque<Task*>, kLanes> lanes_;
  unsigned turns_ = 0;
};

}  // namespace recurve
