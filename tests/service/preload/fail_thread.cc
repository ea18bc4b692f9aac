// To be preloaded by recurve-server: of the threads that it starts, RECURVE_FAIL_THREADS fail, and
// RECURVE_FAIL_THREAD of them start before.
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

namespace {

using Create = int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);

int number(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? 0 : std::atoi(text);
}

}  // namespace

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*start)(void*), void* argument) noexcept {
  static std::atomic<int> started = 0;
  static const auto create = reinterpret_cast<Create*>(dlsym(RTLD_NEXT, "pthread_create"));
  const int after = started++ - number("RECURVE_FAIL_THREAD");
  if (after >= 0 && after < number("RECURVE_FAIL_THREADS")) return EAGAIN;
  return create(thread, attributes, start, argument);
}
