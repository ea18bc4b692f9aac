// To be preloaded by recurve-server: the time of day is RECURVE_CLOCK_SHIFT seconds later.
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

#include <cstdlib>

namespace {

time_t shift() {
  const char* const seconds = std::getenv("RECURVE_CLOCK_SHIFT");
  return seconds == nullptr ? 0 : std::atol(seconds);
}

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  using Call = int(clockid_t, timespec*);
  static const auto call = reinterpret_cast<Call*>(dlsym(RTLD_NEXT, "clock_gettime"));
  const int result = call(clock, now);
  if (result == 0 && clock == CLOCK_REALTIME) now->tv_sec += shift();
  return result;
}

extern "C" int gettimeofday(timeval* now, void*) noexcept {
  timespec precise{};
  const int result = clock_gettime(CLOCK_REALTIME, &precise);
  *now = {.tv_sec = precise.tv_sec, .tv_usec = precise.tv_nsec / 1000};
  return result;
}

extern "C" time_t time(time_t* now) noexcept {
  timespec precise{};
  clock_gettime(CLOCK_REALTIME, &precise);
  if (now != nullptr) *now = precise.tv_sec;
  return precise.tv_sec;
}
