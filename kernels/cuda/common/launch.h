#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/ceil_div.h"
#include "kernels/cuda/common/stream.h"

namespace recurve::cuda {

struct LaunchShape {
  dim3 grid;
  unsigned threads;
  size_t shared = 0;     // bytes of dynamic shared memory
  unsigned cluster = 1;  // blocks side by side in x that share a cluster
  // Starts when all before it has ended, with the L1 cache as it likes: for a kernel that streams
  // through so many states that memory for loads in flight is worth more than its ends.
  bool alone = false;
  // Percent of the L1 cache that is shared memory. As in all kernels it is all: see below. A kernel
  // that streams through states is faster with what its blocks need: loads in flight take memory.
  int carveout = cudaSharedmemCarveoutMaxShared;
};

// Bytes of shared memory that a block of the current device may have.
inline size_t most_shared_memory(const char* op) {
  int device = 0, bytes = 0;
  abort_if_failed(cudaGetDevice(&device), op);
  abort_if_failed(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
                  op);
  return static_cast<size_t>(bytes);
}

// Gives the kernel the largest part of the L1 cache as shared memory: a multiprocessor that has to
// change its parts ends all that it runs before, so kernels overlap only where they agree.
inline void keep_carveout(const void* kernel, const char* op,
                          int carveout = cudaSharedmemCarveoutMaxShared) {
  abort_if_failed(
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, carveout), op);
}

// Launches a kernel that may start before what is queued ahead of it has ended (programmatic
// dependent launch). Until each of its blocks has called wait_for_previous() it may read what no
// kernel writes, and nothing else: see dependency.cuh.
template <typename... Params, typename... Args>
void launch_early(Stream& stream, const char* op, void (*kernel)(Params...),
                  const LaunchShape& shape, Args&&... args) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {shape.cluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared;
  config.stream = use(stream);
  keep_carveout(reinterpret_cast<const void*>(kernel), op,
                shape.alone ? cudaSharedmemCarveoutDefault : shape.carveout);
  const bool early = static_cast<CudaStream&>(stream).starts_early() && !shape.alone;
  config.attrs = early ? attributes : attributes + 1;
  config.numAttrs = (early ? 1u : 0u) + (shape.cluster > 1 ? 1u : 0u);
  abort_if_failed(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), op);
}

}  // namespace recurve::cuda
