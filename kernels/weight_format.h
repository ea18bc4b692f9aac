#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/tensor.h"

namespace recurve {

// How the values of a weight matrix lie in memory and in files: row by row, and each row in groups
// of columns that share a scale. Where the last group of a row is not full, zeros fill it up. A
// format is a constant that lives as long as the process, and is one by its address. The linear
// layers that take it are found in LinearOp; weight_formats.h lists those there are.
struct WeightFormat {
  std::string_view name;  // "bf16": in --weights, the start-up table and Control.GetModelInfo
  DType dtype;            // kF32 or kBF16: one value after the other, without scales
  int64_t group;          // columns of a group
  int64_t group_bytes;    // bytes of the values of a group
  int64_t group_scale;    // bytes of what a group has in addition to its values: 0: nothing
  // Writes a row of K values, and what belongs to it, from fp32, and reads it back. The values
  // that are read back are what the matrix is: a kernel computes with them and nothing else. The
  // same bits on every machine. scales: null where group_scale is 0.
  void (*pack)(const float* row, int64_t K, std::byte* data, std::byte* scales);
  void (*unpack)(const std::byte* data, const std::byte* scales, int64_t K, float* row);
  // How the same values stand in a Matrix::transposed: all values of a column lie together, and the
  // scales of all outputs in a group of columns: (groups(K) * group, N) and (groups(K), N). Rows
  // become a part of each column and group: (groups(K) * group, rows) and (groups(K), rows). N and
  // rows are multiples of outputs_together, which share bytes. Null: the format has no such form.
  int64_t outputs_together = 1;
  void (*transpose)(const std::byte* data, const std::byte* scales, int64_t rows, int64_t K,
                    std::byte* to, std::byte* scales_to) = nullptr;

  int64_t groups(int64_t K) const { return (K + group - 1) / group; }
  int64_t row_bytes(int64_t K) const { return groups(K) * group_bytes; }
  int64_t row_scales(int64_t K) const { return groups(K) * group_scale; }  // bytes
  int64_t column_bytes(int64_t N) const { return N * group_bytes / group; }
  bool packed() const { return dtype == DType::kPacked; }
};

// The format of a matrix. Of other types than F32 and BF16 without a format there is none: that
// ends the process.
const WeightFormat& format_of(DType dtype);
inline const WeightFormat& format_of(const Matrix& W) {
  return W.format != nullptr ? *W.format : format_of(W.dtype);
}

// Some of the rows of a matrix: so many from `first` on.
inline Matrix rows_of(Matrix W, int64_t first, int64_t count) {
  const WeightFormat& format = format_of(W);
  W.N = count;
  W.data = static_cast<const std::byte*>(W.data) + first * format.row_bytes(W.K);
  if (format.group_scale > 0) {
    W.scales = static_cast<const std::byte*>(W.scales) + first * format.row_scales(W.K);
  }
  return W;
}

// The values of one row in fp32, of a matrix in memory of the host. (W.K)
inline void unpack_row(const Matrix& W, int64_t row, float* values) {
  const WeightFormat& format = format_of(W);
  format.unpack(static_cast<const std::byte*>(W.data) + row * format.row_bytes(W.K),
                static_cast<const std::byte*>(W.scales) + row * format.row_scales(W.K), W.K,
                values);
}

}  // namespace recurve
