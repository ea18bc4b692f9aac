// To be preloaded by recurve-server: once the file that RECURVE_FAIL_ALLOCATION names is there, the
// next allocation of the engine's thread fails, and the file is gone.
#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace {

bool on_engine_thread() {
  char name[16] = {};
  return pthread_getname_np(pthread_self(), name, sizeof name) == 0 && !std::strcmp(name, "engine");
}

void* allocate(size_t bytes) {
  const char* file = std::getenv("RECURVE_FAIL_ALLOCATION");
  if (file != nullptr && on_engine_thread() && unlink(file) == 0) throw std::bad_alloc();
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t bytes) { return allocate(bytes); }
void* operator new[](size_t bytes) { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
