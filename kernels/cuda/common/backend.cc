#include "kernels/cuda/common/backend.h"

#include <fmt/format.h>

#include <charconv>
#include <stdexcept>
#include <vector>

#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/common/table.h"

namespace recurve::cuda {
namespace {

constexpr int kOldestMajor = 8;  // compute capability of the oldest code in this build: sm_80

// A CUDA graph.
class Graph : public Recording {
 public:
  // Instantiates the steps that were captured.
  explicit Graph(cudaGraph_t captured) {
    const cudaError_t status = cudaGraphInstantiate(&graph_, captured, 0);
    abort_if_failed(cudaGraphDestroy(captured), "end of a recording");
    CUDA_CHECK(status);
  }
  ~Graph() override { cudaGraphExecDestroy(graph_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void replay(Stream& stream) override {
    abort_if_failed(cudaGraphLaunch(graph_, use(stream)), "replay of a recording");
  }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

class CudaEvent : public Event {
 public:
  explicit CudaEvent(int device) {
    CUDA_CHECK(cudaSetDevice(device));
    CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  }
  ~CudaEvent() override { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  void record(Stream& stream) override {
    abort_if_failed(cudaEventRecord(event_, use(stream)), "event");
  }
  void wait() override { abort_if_failed(cudaEventSynchronize(event_), "wait for an event"); }
  cudaEvent_t handle() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// The memory of one GPU. cudaMalloc aligns to 256 bytes.
class CudaBackend : public Backend {
 public:
  CudaBackend(int device, std::string name, const Kernels& kernels)
      : Backend(std::move(name), kernels), device_(device) {}

  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CudaStream>(device_); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CudaEvent>(device_); }
  bool queues() const override { return true; }
  size_t free_memory() const override {
    size_t free = 0, total = 0;
    CUDA_CHECK(cudaSetDevice(device_));
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return free;
  }
  void upload(void* device, const void* host, size_t bytes, Stream& stream) override {
    copy_bytes(device, host, bytes, cudaMemcpyHostToDevice, stream, "upload");
  }
  void download(void* host, const void* device, size_t bytes, Stream& stream) override {
    copy_bytes(host, device, bytes, cudaMemcpyDeviceToHost, stream, "download");
  }
  void copy(void* to, const void* from, size_t bytes, Stream& stream) override {
    copy_bytes(to, from, bytes, cudaMemcpyDeviceToDevice, stream, "copy");
  }
  void zero(void* device, size_t bytes, Stream& stream) override {
    if (bytes > 0) abort_if_failed(cudaMemsetAsync(device, 0, bytes, use(stream)), "zero");
  }
  bool hands_over_copies(size_t) const override { return true; }
  std::unique_ptr<Stream> make_copy_stream() override {
    return std::make_unique<CudaStream>(device_, CudaStream::Use::kCopies);
  }
  void begin_after(Event& event, Stream& stream) override {
    abort_if_failed(cudaStreamWaitEvent(use(stream), static_cast<CudaEvent&>(event).handle()),
                    "wait of a stream for an event");
  }
  void copy_pieces(std::span<const CopyPiece> pieces, Stream& stream) override;

  bool pins_host_memory() const override { return true; }
  bool pin(void* memory, size_t bytes) override {
    abort_if_failed(cudaSetDevice(device_), "choice of the device");
    if (cudaHostRegister(memory, bytes, cudaHostRegisterPortable) == cudaSuccess) return true;
    static_cast<void>(cudaGetLastError());  // the answer says so
    return false;
  }
  void unpin(void* memory) override {
    abort_if_failed(cudaHostUnregister(memory), "return of pinned memory");
  }

  std::unique_ptr<Recording> record(std::function<void()> work, Stream& stream) override {
    CUDA_CHECK(cudaStreamBeginCapture(use(stream), cudaStreamCaptureModeThreadLocal));
    work();
    cudaGraph_t captured = nullptr;
    CUDA_CHECK(cudaStreamEndCapture(use(stream), &captured));
    return std::make_unique<Graph>(captured);
  }

 private:
  std::byte* take_memory(size_t bytes) override {
    if (bytes == 0) return nullptr;
    CUDA_CHECK(cudaSetDevice(device_));
    void* memory = nullptr;
    if (cudaMalloc(&memory, bytes) == cudaErrorMemoryAllocation) refuse(bytes);
    CUDA_CHECK(cudaGetLastError());
    CUDA_CHECK(cudaMemset(memory, 0, bytes));
    // Streams do not wait for the default one, on which the memory is being zeroed.
    CUDA_CHECK(cudaDeviceSynchronize());
    return static_cast<std::byte*>(memory);
  }

  HostMemory take_host_memory(size_t bytes) override {
    CUDA_CHECK(cudaSetDevice(device_));
    void* memory = nullptr;
    CUDA_CHECK(cudaMallocHost(&memory, bytes));
    return {static_cast<std::byte*>(memory),
            [](std::byte* data) { abort_if_failed(cudaFreeHost(data), "return of host memory"); }};
  }

  [[noreturn]] void refuse(size_t bytes) const {
    static_cast<void>(cudaGetLastError());  // the failure is reported here
    size_t free = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    throw std::runtime_error(
        fmt::format("backend '{}' wanted {} bytes of memory, and {} of its {} are free: fewer "
                    "slots or a smaller model may fit",
                    name(), bytes, free, total));
  }

  void give_memory(std::byte* data, size_t) override {
    abort_if_failed(cudaSetDevice(device_), "choice of the device");
    abort_if_failed(cudaFree(data), "return of memory");
  }

  static void copy_bytes(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                         Stream& stream, const char* what) {
    if (bytes > 0) abort_if_failed(cudaMemcpyAsync(to, from, bytes, kind, use(stream)), what);
  }

  const int device_;
};

// One call for all of them: the copy engines take them one after the other, and no multiprocessor.
void CudaBackend::copy_pieces(std::span<const CopyPiece> pieces, Stream& stream) {
  std::vector<void*> to;
  std::vector<const void*> from;
  std::vector<size_t> bytes;
  for (const CopyPiece& piece : pieces) {
    if (piece.bytes == 0) continue;
    if (piece.from == nullptr) {
      zero(piece.to, piece.bytes, stream);
      continue;
    }
    to.push_back(piece.to);
    from.push_back(piece.from);
    bytes.push_back(piece.bytes);
  }
  if (to.empty()) return;
  cudaMemcpyAttributes in_order{};
  in_order.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t first = 0;  // from which on the attributes hold
  abort_if_failed(cudaMemcpyBatchAsync(to.data(), from.data(), bytes.data(), to.size(), &in_order,
                                       &first, 1, use(stream)),
                  "copies of pieces");
}

int parse_index(std::string_view device) {
  const std::string_view digits = device.substr(std::string_view("cuda:").size());
  int index = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  if (error != std::errc() || end != digits.data() + digits.size() || index < 0) {
    throw std::runtime_error(
        fmt::format("device '{}': wanted cuda:N, N being the number of a GPU from 0 on", device));
  }
  return index;
}

}  // namespace

std::unique_ptr<Backend> make_backend(std::string_view device, ChooseKernels choose) {
  const int index = parse_index(device);
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) {
    throw std::runtime_error(fmt::format(
        "device '{}': no GPU can be used here: {} (is NVIDIA's driver for CUDA 13 installed?)",
        device, cudaGetErrorString(status)));
  }
  if (index >= count) {
    throw std::runtime_error(fmt::format(
        "device '{}': GPUs of this machine are numbered from 0, and it has {}", device, count));
  }
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  if (properties.major < kOldestMajor) {
    throw std::runtime_error(fmt::format(
        "device '{}': wanted a GPU of compute capability {}.0 or later, found {} with {}.{}",
        device, kOldestMajor, properties.name, properties.major, properties.minor));
  }
  CUDA_CHECK(cudaSetDevice(index));
  return std::make_unique<CudaBackend>(
      index,
      fmt::format("{}, {}, sm_{}{}", device, properties.name, properties.major, properties.minor),
      choose(tables(properties.major, properties.sharedMemPerBlockOptin)));
}

}  // namespace recurve::cuda
