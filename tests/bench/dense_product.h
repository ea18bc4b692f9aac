#pragma once
#include <chrono>
#include <vector>

#include "kernels/backend.h"
#include "kernels/bf16.h"
#include "tests/bench/report.h"

namespace recurve::bench {

// The rate of one dense product by the backend's own kernel, in the type that its linear layers
// multiply weights of bf16 in: 512 rows of 768 values with 4,096 outputs, from matrices that no
// second cache holds. It is as fast as products of matrices are there, and changes where others use
// the same units, so it is measured by turns with what it is compared to.
class DenseProduct {
 public:
  explicit DenseProduct(Backend& backend)
      : backend_(backend),
        stream_(backend.make_stream()),
        x_(backend.allocate(sizeof(float) * kRows * kColumns)),
        y_(backend.allocate(sizeof(float) * kRows * kOutputs)) {
    uint32_t random = 1;
    const auto value = [&random] {  // from -1 to 1, of arbitrary bits
      random = random * 1'664'525 + 1'013'904'223;
      return static_cast<float>(static_cast<int32_t>(random)) * 0x1p-31f;
    };
    std::vector<float> x(kRows * kColumns);
    for (float& one : x) one = value();
    backend_.upload(x_.data(), x.data(), x_.bytes(), *stream_);
    std::vector<uint16_t> weights(kOutputs * kColumns);
    for (int matrix = 0; matrix < kMatrices; ++matrix) {
      for (uint16_t& one : weights) one = f32_to_bf16(value());
      W_.push_back(backend.allocate(sizeof(uint16_t) * weights.size()));
      backend_.upload(W_.back().data(), weights.data(), W_.back().bytes(), *stream_);
      stream_->wait();
    }
  }

  // GFLOP/s: the median of four times all matrices.
  double measure() const {
    using Clock = std::chrono::steady_clock;
    std::vector<double> seconds;
    for (int pass = 0; pass < 4 * kMatrices; ++pass) {
      const auto began = Clock::now();
      backend_.kernels().linear({.rows = kRows,
                                 .W = {.dtype = DType::kBF16,
                                       .N = kOutputs,
                                       .K = kColumns,
                                       .data = W_[pass % kMatrices].data()},
                                 .x = x_.as<float>(),
                                 .y = y_.as<float>()},
                                *stream_);
      stream_->wait();
      seconds.push_back(std::chrono::duration<double>(Clock::now() - began).count());
    }
    return 2.0 * kRows * kOutputs * kColumns / median(seconds) / 1e9;
  }

 private:
  static constexpr int64_t kRows = 512, kOutputs = 4096, kColumns = 768;
  static constexpr int kMatrices = 4;

  Backend& backend_;
  const std::unique_ptr<Stream> stream_;
  const Buffer x_, y_;
  std::vector<Buffer> W_;
};

}  // namespace recurve::bench
