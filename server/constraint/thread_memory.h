#pragma once
#include <cstdint>

namespace recurve {

// Counts the bytes that its thread allocates with new, less those that it frees, while it exists.
// thread_memory.cc defines these operators, which call the ones that the program would use
// otherwise. Programs with their own operators call add(); else nothing is counted, as in builds
// with sanitizers.
class ThreadMemory {
 public:
  ThreadMemory() : outer_(current) { current = this; }
  ~ThreadMemory() { current = outer_; }
  ThreadMemory(const ThreadMemory&) = delete;
  ThreadMemory& operator=(const ThreadMemory&) = delete;

  int64_t bytes() const { return bytes_; }

  static bool counts() { return current != nullptr; }
  // Adds to the count of this thread, if there is one.
  static void add(int64_t bytes) {
    if (current != nullptr) current->bytes_ += bytes;
  }

 private:
  static inline thread_local ThreadMemory* current = nullptr;
  ThreadMemory* const outer_;
  int64_t bytes_ = 0;
};

}  // namespace recurve
