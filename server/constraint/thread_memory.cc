#include "server/constraint/thread_memory.h"

#include <dlfcn.h>
#include <malloc.h>

#include <cstdlib>
#include <new>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define RECURVE_NEW_IS_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RECURVE_NEW_IS_SANITIZED 1
#endif

#ifndef RECURVE_NEW_IS_SANITIZED  // which defines these operators itself

namespace recurve {
namespace {

template <typename Function>
Function* next_of(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

void* allocate(size_t bytes) {
  static auto* const next = next_of<void*(size_t)>("_Znwm");
  if (next != nullptr) return next(bytes);
  void* allocated = std::malloc(bytes);
  if (allocated == nullptr) throw std::bad_alloc();
  return allocated;
}

void release(void* allocated) {
  static auto* const next = next_of<void(void*)>("_ZdlPv");
  next != nullptr ? next(allocated) : std::free(allocated);
}

}  // namespace
}  // namespace recurve

// The other forms, for arrays and so on, are those of the standard library, which call these.
[[gnu::weak, gnu::noinline]] void* operator new(size_t bytes) {
  void* allocated = recurve::allocate(bytes);
  if (recurve::ThreadMemory::counts()) {
    recurve::ThreadMemory::add(static_cast<int64_t>(malloc_usable_size(allocated)));
  }
  return allocated;
}
[[gnu::weak, gnu::noinline]] void operator delete(void* allocated) noexcept {
  if (recurve::ThreadMemory::counts()) {
    recurve::ThreadMemory::add(-static_cast<int64_t>(malloc_usable_size(allocated)));
  }
  recurve::release(allocated);
}
[[gnu::weak, gnu::noinline]] void operator delete(void* allocated, size_t) noexcept {
  operator delete(allocated);
}

#endif
