#pragma once
#include <cuda_runtime_api.h>

#include <span>

#include "kernels/cuda/common/error.h"
#include "kernels/cuda/common/scratch.h"
#include "kernels/stream.h"

namespace recurve::cuda {

// A stream of one device. Its work is queued by one thread at a time.
class CudaStream : public Stream {
 public:
  // What its work may be. A stream for copies has no memory for kernels, and a thread that waits
  // for it sleeps, where others spin to be sooner awake.
  enum class Use { kAll, kCopies };

  explicit CudaStream(int device, Use use = Use::kAll);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void wait() override;

  // The stream, with its device made the current one of this thread: so launches may follow.
  cudaStream_t use() const {
    abort_if_failed(cudaSetDevice(device_), "choice of the device");
    return handle_;
  }

  // Memory of the device for what an op hands from one of its kernels to the next.
  std::span<std::byte> scratch() const { return {scratch_, kScratchBytes}; }

  // Memory of the device for a matrix that is unpacked for one layer, or none.
  std::span<std::byte> unpacked() const {
    return {unpacked_, unpacked_ == nullptr ? 0 : kUnpackedBytes};
  }

  // Counters that are 0 between kernels: for blocks that have to know which of them is the last.
  std::span<unsigned> counters() const { return {counters_, kCounters}; }

  // Those that the device has.
  int multiprocessors() const { return multiprocessors_; }

  // Whether blocks may be clusters: as kernels may be launched early, on Hopper and later.
  bool has_clusters() const { return starts_early_; }

  // Whether kernels may be launched early: see launch.h.
  bool starts_early() const { return starts_early_; }

 private:
  static constexpr size_t kCounters = size_t{1} << 20;
  const int device_;
  cudaStream_t handle_ = nullptr;
  cudaEvent_t asleep_ = nullptr;  // of a stream for copies
  std::byte* scratch_ = nullptr;
  std::byte* unpacked_ = nullptr;
  unsigned* counters_ = nullptr;
  bool starts_early_ = false;
  int multiprocessors_ = 0;
};

inline cudaStream_t use(Stream& stream) { return static_cast<CudaStream&>(stream).use(); }

// Checks a launch of the op, and is called after each.
inline void expect_launched(const char* op, const char* file = __builtin_FILE(),
                            int line = __builtin_LINE()) {
  abort_if_failed(cudaGetLastError(), op, file, line);
}

}  // namespace recurve::cuda
