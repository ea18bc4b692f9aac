#include "kernels/cuda/common/stream.h"

namespace recurve::cuda {
namespace {

// Says for which architecture the code that this device runs was compiled: kernels of an older one
// do not know how to wait for the kernel before them.
__global__ void probe_kernel() {}
constexpr int kArchitectureThatWaits = 90;

}  // namespace

CudaStream::CudaStream(int device, Use use) : device_(device) {
  CUDA_CHECK(cudaSetDevice(device));
  if (use == Use::kCopies) {
    CUDA_CHECK(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreateWithFlags(&asleep_, cudaEventBlockingSync | cudaEventDisableTiming));
    return;
  }
  cudaFuncAttributes probe{};
  CUDA_CHECK(cudaFuncGetAttributes(&probe, probe_kernel));
  starts_early_ = probe.ptxVersion >= kArchitectureThatWaits;
  CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device));
  CUDA_CHECK(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking));
  void* memory = nullptr;
  CUDA_CHECK(cudaMalloc(&memory, kScratchBytes));
  scratch_ = static_cast<std::byte*>(memory);
  if (starts_early_) {
    CUDA_CHECK(cudaMalloc(&memory, kUnpackedBytes));
    unpacked_ = static_cast<std::byte*>(memory);
  }
  CUDA_CHECK(cudaMalloc(&memory, kCounters * sizeof(unsigned)));
  counters_ = static_cast<unsigned*>(memory);
  CUDA_CHECK(cudaMemsetAsync(counters_, 0, kCounters * sizeof(unsigned), handle_));
}

void CudaStream::wait() {
  if (asleep_ == nullptr) {
    return abort_if_failed(cudaStreamSynchronize(handle_), "wait for the stream");
  }
  abort_if_failed(cudaEventRecord(asleep_, use()), "end of copies");
  abort_if_failed(cudaEventSynchronize(asleep_), "wait for copies");
}

CudaStream::~CudaStream() {
  if (asleep_ != nullptr) cudaEventDestroy(asleep_);
  cudaStreamDestroy(handle_);
  cudaFree(scratch_);
  cudaFree(unpacked_);
  cudaFree(counters_);
}

}  // namespace recurve::cuda
