// How many processors libraries see. gRPC has several threads for each that the host has, whatever
// a control group leaves of them to this process.
#include <unistd.h>

#include "kernels/host.h"

extern "C" long __sysconf(int name) noexcept;  // the C library's own

// In place of the C library's: the dynamic linker takes a program's before a library's. The count
// stays the same, as gRPC has arrays of it.
extern "C" long sysconf(int name) noexcept {
  if (name != _SC_NPROCESSORS_CONF && name != _SC_NPROCESSORS_ONLN) return __sysconf(name);
  static const int threads = recurve::host_threads();
  return threads;
}
