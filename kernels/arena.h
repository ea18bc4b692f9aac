#pragma once
#include "kernels/backend.h"
#include "kernels/check.h"

namespace recurve {

// Memory for the activations of one step: taken from the front, all given back at once. Sized once,
// for the largest step there will be, so that a step never allocates.
class Arena {
 public:
  Arena(Backend& backend, size_t bytes) : memory_(backend.allocate(bytes)) {}

  float* floats(size_t count) { return reinterpret_cast<float*>(take(count * sizeof(float))); }
  void reset() { used_ = 0; }

  // The bytes that `count` floats take, for adding up what a step will need.
  static constexpr size_t bytes_for(size_t count) {
    return (count * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
  }

 private:
  static constexpr size_t kAlignment = 64;
  std::byte* take(size_t bytes) {
    const size_t begin = used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    CHECK(used_ <= memory_.bytes());
    return memory_.data() + begin;
  }
  Buffer memory_;
  size_t used_ = 0;
};

}  // namespace recurve
