#pragma once
#include <cstddef>
#include <cstring>

#include "kernels/ops/expert_linear.h"
#include "kernels/ops/linear.h"

namespace recurve::cpu {

// The products of one format for the rows [row_begin, row_end) and the outputs [begin, end), with
// bias and residual: of a row the same bits, whatever the ranges are. rounded: the rows of x where
// the block reads them so, see LinearProducts; then args.x is not read.
using LinearBlock = void (*)(const LinearArgs& args, const std::byte* rounded, int64_t row_begin,
                             int64_t row_end, int64_t begin, int64_t end);

// How a linear layer multiplies.
struct LinearProducts {
  LinearBlock block;
  int64_t outputs = 8;  // ranges of outputs begin at multiples of this
  int64_t rows = 1;     // ranges of rows begin at multiples of this
  int64_t tasks = 4;    // of a thread, at most
  // What stays in the second cache: weights while rows pass by, as many as fit with these; or
  // rounded rows while weights pass by.
  int64_t cache_bytes = 256 * 1024;
  // What an output's weights take there; null: as many as in the matrix.
  int64_t (*weight_bytes)(int64_t K) = nullptr;
  bool rows_stay = false;
  // Where x is rounded before: bytes of a row, a multiple of 64, and how the next `rows` of them,
  // or as many as there still are, are made. They lie one after the other, 64-byte aligned.
  int64_t (*rounded_bytes)(int64_t K) = nullptr;
  void (*round)(const float* x, int64_t K, int64_t rows, std::byte* to) = nullptr;
  // Scratch of a thread, of blocks of so many rows and outputs at most. Null: none.
  size_t (*block_scratch)(int64_t K, int64_t rows, int64_t outputs) = nullptr;

  // Outputs whose weights stay in the cache while rows pass by: a multiple of `outputs`.
  int64_t outputs_at_once(const Matrix& W) const;
};

// How a layer of these rows and weights multiplies: of a row the same bits, whatever it gives.
using ChooseProducts = LinearProducts (*)(const LinearArgs& args);

// The linear op: norm, products shared among the threads, gate and cap.
void linear_with(const LinearProducts& products, const LinearArgs& args, Stream& stream);
ScratchBytes scratch_with(const LinearProducts& products, const LinearArgs& args);

// The op expert_linear: products of each expert's rows with its matrix, shared among the threads.
void experts_with(ChooseProducts choose, const ExpertLinearArgs& args, Stream& stream);
ScratchBytes scratch_with(ChooseProducts choose, const ExpertLinearArgs& args);

// sum + bias + residual, for `count` outputs of a row from output n on.
inline void finish_outputs(const LinearArgs& a, int64_t row, int64_t n, int64_t count,
                           const float* sums) {
  using Four = float __attribute__((vector_size(16)));
  const int64_t at = row * a.W.N + n;
  int64_t j = 0;
  for (; j + 4 <= count; j += 4) {
    const auto four = [](const float* from) {
      Four values;
      std::memcpy(&values, from, sizeof(values));
      return values;
    };
    Four sum = four(sums + j);
    if (a.bias != nullptr) sum += four(a.bias + n + j);
    if (a.residual != nullptr) sum += four(a.residual + at + j);
    std::memcpy(a.y + at + j, &sum, sizeof(sum));
  }
  for (; j < count; ++j) {
    float sum = sums[j];
    if (a.bias != nullptr) sum += a.bias[n + j];
    if (a.residual != nullptr) sum += a.residual[at + j];
    a.y[at + j] = sum;
  }
}

}  // namespace recurve::cpu
