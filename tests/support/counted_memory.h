#pragma once
#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "server/constraint/thread_memory.h"

// Counts what a test program has allocated with new. It replaces the operators of the whole
// program, so one source of a program includes it.
namespace recurve::testing {

inline std::atomic<int64_t> live_bytes{0}, most_live_bytes{0};

inline void* counted(void* allocated) {
  const auto bytes = static_cast<int64_t>(malloc_usable_size(allocated));
  ThreadMemory::add(bytes);
  const int64_t now = live_bytes += bytes;
  int64_t seen = most_live_bytes;
  while (now > seen && !most_live_bytes.compare_exchange_weak(seen, now)) {
  }
  return allocated;
}
inline void* allocate_counted(size_t bytes) {
  void* allocated = std::malloc(bytes);
  if (allocated == nullptr) throw std::bad_alloc();
  return counted(allocated);
}
inline void* allocate_counted(size_t bytes, std::align_val_t alignment) {
  const auto unit = static_cast<size_t>(alignment);
  void* allocated = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
  if (allocated == nullptr) throw std::bad_alloc();
  return counted(allocated);
}
inline void release_counted(void* allocated) {
  const auto bytes = static_cast<int64_t>(malloc_usable_size(allocated));
  ThreadMemory::add(-bytes);
  live_bytes -= bytes;
  std::free(allocated);
}

// The most bytes that were live at once since this began, beyond those that were live then.
class MostLiveBytes {
 public:
  MostLiveBytes() : before_(live_bytes) { most_live_bytes = before_; }
  int64_t operator()() const { return most_live_bytes - before_; }

 private:
  const int64_t before_;
};

}  // namespace recurve::testing

void* operator new(size_t bytes) { return recurve::testing::allocate_counted(bytes); }
void* operator new[](size_t bytes) { return recurve::testing::allocate_counted(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  void* allocated = std::malloc(bytes);
  return allocated == nullptr ? nullptr : recurve::testing::counted(allocated);
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return recurve::testing::allocate_counted(bytes, alignment);
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return recurve::testing::allocate_counted(bytes, alignment);
}
void operator delete(void* allocated) noexcept { recurve::testing::release_counted(allocated); }
void operator delete[](void* allocated) noexcept { recurve::testing::release_counted(allocated); }
void operator delete(void* allocated, size_t) noexcept {
  recurve::testing::release_counted(allocated);
}
void operator delete[](void* allocated, size_t) noexcept {
  recurve::testing::release_counted(allocated);
}
void operator delete(void* allocated, std::align_val_t) noexcept {
  recurve::testing::release_counted(allocated);
}
void operator delete[](void* allocated, std::align_val_t) noexcept {
  recurve::testing::release_counted(allocated);
}
void operator delete(void* allocated, size_t, std::align_val_t) noexcept {
  recurve::testing::release_counted(allocated);
}
void operator delete[](void* allocated, size_t, std::align_val_t) noexcept {
  recurve::testing::release_counted(allocated);
}
