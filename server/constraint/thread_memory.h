#pragma once
#include <cstdint>

namespace recurve {

// Counts, while one lives, the bytes that its thread allocates with new, less those that it frees:
// thread_memory.cc defines these operators, in front of the ones that the program would have
// without. Programs that define them otherwise call add(), or nothing is counted, as in builds with
// sanitizers.
class ThreadMemory {
 public:
  ThreadMemory() : outer_(current) { current = this; }
  ~ThreadMemory() { current = outer_; }
  ThreadMemory(const ThreadMemory&) = delete;
  ThreadMemory& operator=(const ThreadMemory&) = delete;

  int64_t bytes() const { return bytes_; }

  static bool counts() { return current != nullptr; }
  // To the one of this thread.
  static void add(int64_t bytes) {
    if (current != nullptr) current->bytes_ += bytes;
  }

 private:
  static inline thread_local ThreadMemory* current = nullptr;
  ThreadMemory* const outer_;
  int64_t bytes_ = 0;
};

}  // namespace recurve
