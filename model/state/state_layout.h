#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace recurve {

// One array of a sequence's state, by the name and logical shape that snapshots will carry.
struct StateArray {
  std::string name;  // "C", "n", "m", "conv", ...
  int layer = 0;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // of one slot

  size_t elements() const {
    size_t count = 1;
    for (int64_t extent : shape) count *= static_cast<size_t>(extent);
    return count;
  }
  size_t bytes() const { return elements() * size_of(dtype); }
};

// All a sequence must remember: a fixed set of arrays, whatever its length. All zero is the state
// of a sequence that has seen nothing.
struct StateLayout {
  std::vector<StateArray> arrays;

  size_t bytes() const {
    size_t sum = 0;
    for (const StateArray& array : arrays) sum += array.bytes();
    return sum;
  }
};

}  // namespace recurve
