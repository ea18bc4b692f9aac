#pragma once
#include <cstdint>

namespace recurve {

// In bytes, from /proc/self/statm; 0 if it does not exist.
struct ProcessMemory {
  int64_t address_space = 0, resident = 0;
  int64_t anonymous = 0;  // of `resident`: not of files
};
ProcessMemory process_memory();

}  // namespace recurve
