#pragma once
#include <cstdint>
#include <vector>

// In builds with RECURVE_STAMPS kernels write down when they came and when all before them had
// ended, in wait_for_previous(): what lies between two such ends is what a kernel costs where it
// stands, with all that overlaps and all that is not in a cache. `recurve-bench step --stamps`.
namespace recurve::cuda {

struct Stamp {
  uint64_t came, began;                      // ns: of the first block
  uint32_t grid_x, grid_y, threads, shared;  // shared: bytes, dynamic
};

// What the kernels of one source file have written.
struct StampRoom {
  static constexpr unsigned kMost = 1 << 14;
  unsigned count, unused;
  Stamp stamps[kMost];
};

// symbol: a StampRoom of the device.
bool add_stamp_room(const void* symbol);

// Of the current device, while it computes nothing.
void clear_stamps();
std::vector<Stamp> read_stamps();  // in the order in which kernels began

}  // namespace recurve::cuda
