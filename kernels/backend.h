#pragma once
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kernels/kernels.h"
#include "kernels/stream.h"

namespace recurve {

// Work that was recorded and can be queued again as a whole, on the same memory.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay(Stream&) = 0;
};

// A point in the work of a stream.
class Event {
 public:
  virtual ~Event() = default;
  virtual void record(Stream&) = 0;  // here, behind all work queued so far
  virtual void wait() = 0;           // until the point recorded last is reached
};

// Memory of the host for copies to and from a device: such copies do not hold up the host.
using HostMemory = std::unique_ptr<std::byte[], void (*)(std::byte*)>;

// Bytes of one place for another, which do not overlap; zeros where `from` is null.
struct CopyPiece {
  void* to;
  const void* from;
  size_t bytes;
};

class Backend;

// Owns a piece of a backend's memory: zeroed when made, 64-byte aligned. Move-only. The backend
// outlives it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Backend* backend, std::byte* data, size_t bytes)
      : backend_(backend), data_(data), bytes_(bytes) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~Buffer();

  std::byte* data() const { return data_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  Backend* backend_ = nullptr;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// A device: its memory, its streams and its kernels. Made first in main, destroyed last.
// Memory is addressed by plain pointers that only this backend's kernels and copies may follow.
class Backend {
 public:
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  const std::string& name() const { return name_; }  // "cpu, 2 threads, avx3_dl"
  const Kernels& kernels() const { return kernels_; }

  // Throws std::runtime_error when there is not enough memory.
  Buffer allocate(size_t bytes) {
    std::byte* memory = take_memory(bytes);
    allocated_ += bytes;
    return Buffer(this, memory, bytes);
  }
  size_t allocated() const { return allocated_; }  // bytes of all buffers there are
  virtual size_t free_memory() const;              // bytes that can be allocated now
  HostMemory allocate_host(size_t bytes) { return take_host_memory(bytes); }
  virtual std::unique_ptr<Stream> make_stream() = 0;
  virtual std::unique_ptr<Event> make_event();
  // Whether kernels read and write any memory of the process.
  virtual bool computes_on_host() const { return false; }
  // Threads that compute an op together.
  virtual int threads() const { return 1; }
  // Whether calls queue their work and return, or return when it is done.
  virtual bool queues() const { return false; }

  // Copies in the order of the stream. The host side may be touched again after stream.wait().
  virtual void upload(void* device, const void* host, size_t bytes, Stream&) = 0;
  virtual void download(void* host, const void* device, size_t bytes, Stream&) = 0;
  virtual void copy(void* to, const void* from, size_t bytes, Stream&) = 0;
  virtual void zero(void* device, size_t bytes, Stream&) = 0;

  // What Copier asks for, whose thread these are called on, but for hands_over_copies().
  // Whether copies of so many bytes are better made by another thread than by the caller.
  virtual bool hands_over_copies(size_t) const { return false; }
  // For copies alone. Its wait() leaves the processor to others.
  virtual std::unique_ptr<Stream> make_copy_stream() { return make_stream(); }
  // What is queued on the stream from now on begins once the event has passed.
  virtual void begin_after(Event&, Stream&) {}
  // All pieces, each to and from the host's memory or the device's, in any order.
  virtual void copy_pieces(std::span<const CopyPiece> pieces, Stream&);

  // Whether a device copies faster to and from memory of the host that is pinned. Pinned memory
  // stays where it is until it is unpinned, which may hold up the device. `memory`: whole pages.
  // False: the system does not allow it, and the memory is as it was.
  virtual bool pins_host_memory() const { return false; }
  virtual bool pin(void*, size_t) { return false; }
  virtual void unpin(void*) {}

  // Records the ops and the copies within the device that `work` queues on the stream. On a GPU
  // that is a CUDA graph, and nothing is computed yet; other backends just call `work` each time.
  virtual std::unique_ptr<Recording> record(std::function<void()> work, Stream&);

 protected:
  Backend(std::string name, const Kernels& kernels) : name_(std::move(name)), kernels_(kernels) {}
  virtual std::byte* take_memory(size_t bytes) = 0;  // zeroed
  virtual void give_memory(std::byte* data, size_t bytes) = 0;
  virtual HostMemory take_host_memory(size_t bytes);  // uninitialised, 64-byte aligned

 private:
  friend class Buffer;
  const std::string name_;
  const Kernels kernels_;
  std::atomic<size_t> allocated_{0};
};

inline Buffer::~Buffer() {
  if (data_ == nullptr) return;
  backend_->allocated_ -= bytes_;
  backend_->give_memory(data_, bytes_);
}

// device: "cpu", "cuda:N" or "reference". threads: of the CPU; 0 = one a core. The environment
// variable RECURVE_KERNELS forces implementations: "linear=reference,mlstm=reference".
// Throws std::runtime_error naming what this build has when the device is not one of them.
std::unique_ptr<Backend> make_backend(std::string_view device, int threads = 0);

}  // namespace recurve
