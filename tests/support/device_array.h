#pragma once
#include <gtest/gtest.h>

#include <cstring>
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
    std::vector<unsigned char> bytes(memory_.bytes());
    backend_->download(bytes.data(), memory_.data(), bytes.size(), *stream_);
    stream_->wait();
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (i == kGuard) i += count_ * sizeof(T);
      if (bytes[i] != kGuardByte) {
        return ::testing::AssertionFailure()
               << "byte " << static_cast<ptrdiff_t>(i - kGuard) << " of an array of "
               << count_ * sizeof(T) << " was written";
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
    std::vector<unsigned char> bytes(memory_.bytes(), kGuardByte);
    if (count > 0) {
      std::memset(bytes.data() + kGuard, 0xff, count * sizeof(T));
      if (values != nullptr) std::memcpy(bytes.data() + kGuard, values, count * sizeof(T));
    }
    backend.upload(memory_.data(), bytes.data(), bytes.size(), stream);
    stream.wait();
  }

  Backend* backend_;
  Stream* stream_;
  size_t count_;
  Buffer memory_;
};

}  // namespace recurve::testing
