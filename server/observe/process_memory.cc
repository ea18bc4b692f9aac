#include "server/observe/process_memory.h"

#include <unistd.h>

#include <fstream>

namespace recurve {

ProcessMemory process_memory() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0, resident = 0, of_files = 0;
  statm >> pages >> resident >> of_files;
  const int64_t page = sysconf(_SC_PAGESIZE);
  return {pages * page, resident * page, (resident - of_files) * page};
}

}  // namespace recurve
