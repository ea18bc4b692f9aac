#pragma once
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "kernels/backend.h"

namespace recurve::testing {

// A host backend on which states of any size are copied concurrently with steps, and copies can be
// held there for as long as a test wants.
class HeldCopies final : public Backend {
 public:
  explicit HeldCopies(std::unique_ptr<Backend> inner)
      : Backend(inner->name(), inner->kernels()), inner_(std::move(inner)) {}
  ~HeldCopies() override { release(); }

  // From now on copies that are handed over do not begin, until release() is called.
  void hold() { set(true); }
  void release() { set(false); }

  std::unique_ptr<Stream> make_stream() override { return inner_->make_stream(); }
  void upload(void* device, const void* host, size_t bytes, Stream& stream) override {
    inner_->upload(device, host, bytes, stream);
  }
  void download(void* host, const void* device, size_t bytes, Stream& stream) override {
    inner_->download(host, device, bytes, stream);
  }
  void copy(void* to, const void* from, size_t bytes, Stream& stream) override {
    inner_->copy(to, from, bytes, stream);
  }
  void zero(void* device, size_t bytes, Stream& stream) override {
    inner_->zero(device, bytes, stream);
  }
  bool hands_over_copies(size_t) const override { return true; }
  void copy_pieces(std::span<const CopyPiece> pieces, Stream& stream) override {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !held_; });
    }
    inner_->copy_pieces(pieces, stream);
  }

 private:
  void set(bool held) {
    {
      const std::lock_guard lock(mutex_);
      held_ = held;
    }
    changed_.notify_all();
  }
  std::byte* take_memory(size_t bytes) override {
    Buffer buffer = inner_->allocate(bytes);
    std::byte* data = buffer.data();
    buffers_[data] = std::move(buffer);
    return data;
  }
  void give_memory(std::byte* data, size_t) override { buffers_.erase(data); }

  std::unique_ptr<Backend> inner_;
  std::map<std::byte*, Buffer> buffers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
};

}  // namespace recurve::testing
