// To be preloaded by recurve-server: the file RECURVE_SWAPPED is RECURVE_SWAPPED_FOR when it is
// opened, as if a link had been swapped after all checks of paths.
#include <dlfcn.h>
#include <fcntl.h>

#include <cstdarg>
#include <cstdlib>
#include <cstring>

namespace {

using Open = int (*)(const char*, int, ...);

int open_swapped(const char* symbol, const char* path, int flags, mode_t mode) {
  const char* const from = std::getenv("RECURVE_SWAPPED");
  const char* const to = std::getenv("RECURVE_SWAPPED_FOR");
  const bool swapped = from != nullptr && to != nullptr && std::strcmp(path, from) == 0;
  const auto real = reinterpret_cast<Open>(dlsym(RTLD_NEXT, symbol));
  return real(swapped ? to : path, flags, mode);
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

extern "C" int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_swapped("open", path, flags, mode);
}

extern "C" int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_swapped("open64", path, flags, mode);
}
