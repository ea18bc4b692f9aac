// A library that recurve-bench loads where it is asked for cuBLASLt's times, as that alone takes
// longer to load than all else.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/bf16.h"
#include "tests/bench/op_cost.h"

namespace recurve::bench {
namespace {

void check(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error("cuBLASLt: status " + std::to_string(status));
}
void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

using Memory = std::unique_ptr<void, decltype(&cudaFree)>;
Memory take(size_t bytes) {
  void* data = nullptr;
  check(cudaMalloc(&data, bytes));
  return {data, &cudaFree};
}

// A matrix of bf16, normally distributed: some values again and again.
Memory random_matrix(int64_t count) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> values(static_cast<size_t>(std::min<int64_t>(count, 1000003)));
  for (uint16_t& value : values) value = f32_to_bf16(normal(random));
  const auto some = static_cast<int64_t>(values.size());
  Memory matrix = take(static_cast<size_t>(count) * sizeof(uint16_t));
  for (int64_t i = 0; i < count; i += some) {
    check(cudaMemcpy(static_cast<uint16_t*>(matrix.get()) + i, values.data(),
                     static_cast<size_t>(std::min(some, count - i)) * sizeof(uint16_t),
                     cudaMemcpyHostToDevice));
  }
  return matrix;
}

template <typename Handle, cublasStatus_t (*kDestroy)(Handle)>
struct Owned {
  Handle handle = nullptr;
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { kDestroy(handle); }
};

// y^T = W x^T as cuBLAS counts, by columns: W is (K, N) transposed, x (K, rows), y (N, rows).
class CublasLtProduct {
 public:
  explicit CublasLtProduct(const Product& p)
      : W_(random_matrix(p.N * p.K)),
        x_(random_matrix(p.rows * p.K)),
        y_(take(static_cast<size_t>(p.rows * p.N) * sizeof(uint16_t))),
        workspace_(take(kWorkspace)) {
    check(cublasLtCreate(&lt_.handle));
    check(cublasLtMatmulDescCreate(&matmul_.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check(cublasLtMatmulDescSetAttribute(matmul_.handle, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                         sizeof(transposed)));
    lay_out(W_layout_, p.K, p.N);
    lay_out(x_layout_, p.K, p.rows);
    lay_out(y_layout_, p.N, p.rows);
    Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
    check(cublasLtMatmulPreferenceCreate(&preference.handle));
    check(cublasLtMatmulPreferenceSetAttribute(preference.handle,
                                               CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &kWorkspace, sizeof(kWorkspace)));
    proposed_.resize(8);
    int found = 0;
    check(cublasLtMatmulAlgoGetHeuristic(lt_.handle, matmul_.handle, W_layout_.handle,
                                         x_layout_.handle, y_layout_.handle, y_layout_.handle,
                                         preference.handle, static_cast<int>(proposed_.size()),
                                         proposed_.data(), &found));
    proposed_.resize(static_cast<size_t>(found));
    check(cudaStreamCreate(&stream_));
  }
  CublasLtProduct(const CublasLtProduct&) = delete;
  CublasLtProduct& operator=(const CublasLtProduct&) = delete;
  ~CublasLtProduct() { cudaStreamDestroy(stream_); }

  // Of the algorithm that is the fastest of those proposed, once it has worked for so long: a GPU
  // that is busy for longer has lower clocks.
  double seconds_at_best(double least) {
    double best = std::numeric_limits<double>::infinity();
    const cublasLtMatmulAlgo_t* algorithm = nullptr;
    for (const auto& way : proposed_) {
      const double found = seconds_of(way.algo, 8, 0);
      if (found >= best) continue;
      best = found;
      algorithm = &way.algo;
    }
    if (algorithm == nullptr) throw std::runtime_error("cuBLASLt proposes no algorithm");
    return seconds_of(*algorithm, 64, least);
  }

 private:
  static constexpr size_t kWorkspace = size_t{64} << 20;
  using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

  static void lay_out(Layout& layout, int64_t rows, int64_t columns) {
    check(cublasLtMatrixLayoutCreate(&layout.handle, CUDA_R_16BF, static_cast<uint64_t>(rows),
                                     static_cast<uint64_t>(columns), rows));
  }

  // The median of recordings of so many calls that are made for so long, three at least.
  double seconds_of(const cublasLtMatmulAlgo_t& algorithm, int calls, double least) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t recording = nullptr;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
    const float one = 1, none = 0;
    for (int i = 0; i < calls; ++i) {
      check(cublasLtMatmul(lt_.handle, matmul_.handle, &one, W_.get(), W_layout_.handle, x_.get(),
                           x_layout_.handle, &none, y_.get(), y_layout_.handle, y_.get(),
                           y_layout_.handle, &algorithm, workspace_.get(), kWorkspace, stream_));
    }
    check(cudaStreamEndCapture(stream_, &graph));
    check(cudaGraphInstantiate(&recording, graph, 0));
    const auto replay = [&] {
      const auto began = std::chrono::steady_clock::now();
      check(cudaGraphLaunch(recording, stream_));
      check(cudaStreamSynchronize(stream_));
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    };
    replay();  // warm-up
    std::vector<double> times;
    for (double sum = 0; sum < least || times.size() < 3; sum += times.back()) {
      times.push_back(replay());
    }
    check(cudaGraphExecDestroy(recording));
    check(cudaGraphDestroy(graph));
    const auto median = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), median, times.end());
    return *median / calls;
  }

  Memory W_, x_, y_, workspace_;
  Owned<cublasLtHandle_t, cublasLtDestroy> lt_;
  Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> matmul_;
  Layout W_layout_, x_layout_, y_layout_;
  std::vector<cublasLtMatmulHeuristicResult_t> proposed_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace

}  // namespace recurve::bench

// Seconds in which cuBLASLt makes this product of bf16 matrices of random values on the first GPU,
// its result in bf16, measured for so long.
extern "C" double recurve_cublaslt_seconds(const recurve::bench::Product* product, double least) {
  return recurve::bench::CublasLtProduct(*product).seconds_at_best(least);
}
