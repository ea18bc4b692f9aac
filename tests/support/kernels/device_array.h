#pragma once
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "kernels/backend.h"

namespace recurve::testing {

// An array in a backend's memory with guard bytes before and after it, which a kernel must leave as
// they are. Not given values it holds 0xff bytes (NaN for floats), so that what a kernel forgets to
// write shows.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(Backend& backend, Stream& stream, size_t count)
      : DeviceArray(backend, stream, count, nullptr) {}
  DeviceArray(Backend& backend, Stream& stream, const std::vector<T>& values)
      : DeviceArray(backend, stream, values.size(), values.data()) {}

  T* data() const { return reinterpret_cast<T*>(memory_.data() + kGuard); }
  size_t size() const { return count_; }

  std::vector<T> read() const {
    std::vector<T> values(count_);
    backend_->download(values.data(), data(), count_ * sizeof(T), *stream_);
    stream_->wait();
    return values;
  }

  ::testing::AssertionResult guards_intact() const {
    const size_t size = count_ * sizeof(T);
    for (const size_t first : {size_t{0}, kGuard + size}) {
      std::array<unsigned char, kGuard> bytes;
      backend_->download(bytes.data(), at(first), kGuard, *stream_);
      stream_->wait();
      for (size_t i = 0; i < kGuard; ++i) {
        if (bytes[i] != kGuardByte) {
          return ::testing::AssertionFailure()
                 << "byte " << static_cast<ptrdiff_t>(first + i - kGuard) << " of an array of "
                 << size << " was written";
        }
      }
    }
    return ::testing::AssertionSuccess();
  }

 private:
  static constexpr size_t kGuard = 256;  // keeps the array aligned
  static constexpr unsigned char kGuardByte = 0xa5;

  DeviceArray(Backend& backend, Stream& stream, size_t count, const T* values)
      : backend_(&backend),
        stream_(&stream),
        count_(count),
        memory_(backend.allocate(count * sizeof(T) + 2 * kGuard)) {
    const size_t size = count * sizeof(T);
    std::array<unsigned char, kGuard> guard;
    guard.fill(kGuardByte);
    const std::vector<unsigned char> unwritten(values == nullptr ? size : 0, 0xff);
    backend.upload(at(0), guard.data(), kGuard, stream);
    if (size > 0)
      backend.upload(at(kGuard), values ? static_cast<const void*>(values) : unwritten.data(), size,
                     stream);
    backend.upload(at(kGuard + size), guard.data(), kGuard, stream);
    stream.wait();
  }

  unsigned char* at(size_t byte) const { return memory_.as<unsigned char>() + byte; }

  Backend* backend_;
  Stream* stream_;
  size_t count_;
  Buffer memory_;
};

}  // namespace recurve::testing
