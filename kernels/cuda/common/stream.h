#pragma once
#include <cuda_runtime_api.h>

#include "kernels/backend.h"
#include "kernels/cuda/common/error.h"

namespace recurve::cuda {

// A stream of one device. Its work is queued by one thread at a time.
class CudaStream : public Stream {
 public:
  explicit CudaStream(int device) : device_(device) {
    CUDA_CHECK(cudaSetDevice(device));
    CUDA_CHECK(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking));
  }
  ~CudaStream() override { cudaStreamDestroy(handle_); }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void wait() override { abort_if_failed(cudaStreamSynchronize(handle_), "wait for the stream"); }

  // The stream, with its device made the current one of this thread: so launches may follow.
  cudaStream_t use() const {
    abort_if_failed(cudaSetDevice(device_), "choice of the device");
    return handle_;
  }

 private:
  const int device_;
  cudaStream_t handle_ = nullptr;
};

inline cudaStream_t use(Stream& stream) { return static_cast<CudaStream&>(stream).use(); }

// To be called after each launch of the op.
inline void expect_launched(const char* op) { abort_if_failed(cudaGetLastError(), op); }

}  // namespace recurve::cuda
