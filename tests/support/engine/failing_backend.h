#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>

#include "kernels/backend.h"

namespace recurve::testing {

// A host backend whose copies fail once told to: the one that comes after `calls` others throws, as
// do all after it.
class FailingBackend final : public Backend {
 public:
  explicit FailingBackend(std::unique_ptr<Backend> inner)
      : Backend(inner->name(), inner->kernels()), inner_(std::move(inner)) {}

  void fail_after(int64_t calls) { left_ = calls; }

  std::unique_ptr<Stream> make_stream() override { return inner_->make_stream(); }
  std::unique_ptr<Event> make_event() override { return inner_->make_event(); }
  void upload(void* device, const void* host, size_t bytes, Stream& stream) override {
    count();
    inner_->upload(device, host, bytes, stream);
  }
  void download(void* host, const void* device, size_t bytes, Stream& stream) override {
    count();
    inner_->download(host, device, bytes, stream);
  }
  void copy(void* to, const void* from, size_t bytes, Stream& stream) override {
    count();
    inner_->copy(to, from, bytes, stream);
  }
  void zero(void* device, size_t bytes, Stream& stream) override {
    count();
    inner_->zero(device, bytes, stream);
  }

 private:
  void count() {
    if (left_ == kNever) return;
    if (left_ == 0) throw std::runtime_error("the device has fallen off the bus");
    --left_;
  }
  std::byte* take_memory(size_t bytes) override {
    Buffer buffer = inner_->allocate(bytes);
    std::byte* data = buffer.data();
    buffers_[data] = std::move(buffer);
    return data;
  }
  void give_memory(std::byte* data, size_t) override { buffers_.erase(data); }

  static constexpr int64_t kNever = -1;
  std::unique_ptr<Backend> inner_;
  std::map<std::byte*, Buffer> buffers_;
  int64_t left_ = kNever;
};

}  // namespace recurve::testing
