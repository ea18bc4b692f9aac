// To be preloaded by recurve-server: a host of 64 processors.
#include <sys/sysinfo.h>
#include <unistd.h>

extern "C" long __sysconf(int name) noexcept;  // the C library's own

extern "C" long sysconf(int name) noexcept {
  const bool processors = name == _SC_NPROCESSORS_CONF || name == _SC_NPROCESSORS_ONLN;
  return processors ? 64 : __sysconf(name);
}
extern "C" int get_nprocs() noexcept { return 64; }
extern "C" int get_nprocs_conf() noexcept { return 64; }
