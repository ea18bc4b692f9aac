#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace recurve::cpu {

// Memory that begins on a cache line and grows as it is asked for more; what was in it is lost
// then. New memory is not filled.
class AlignedMemory {
 public:
  template <typename T>
  T* reserve(int64_t count) {
    static_assert(alignof(T) <= kAlignment);
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    if (bytes > bytes_) {
      memory_.reset();
      bytes_ = 0;
      memory_.reset(static_cast<std::byte*>(::operator new(bytes, std::align_val_t(kAlignment))));
      bytes_ = bytes;
    }
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  static constexpr size_t kAlignment = 64;
  struct Free {
    void operator()(std::byte* memory) const {
      ::operator delete(memory, std::align_val_t(kAlignment));
    }
  };

  std::unique_ptr<std::byte, Free> memory_;
  size_t bytes_ = 0;
};

}  // namespace recurve::cpu
