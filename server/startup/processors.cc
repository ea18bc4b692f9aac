// The number of processors that libraries see. gRPC starts several threads for each processor of
// the host, even if a control group leaves fewer to this process.
#include <unistd.h>

#include "kernels/host.h"

extern "C" long __sysconf(int name) noexcept;  // the C library's own

// Replaces that of the C library: the dynamic linker prefers the program's. The count is constant,
// as gRPC has arrays of this size.
extern "C" long sysconf(int name) noexcept {
  if (name != _SC_NPROCESSORS_CONF && name != _SC_NPROCESSORS_ONLN) return __sysconf(name);
  static const int threads = recurve::host_threads();
  return threads;
}
