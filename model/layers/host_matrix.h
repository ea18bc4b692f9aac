#pragma once
#include <vector>

#include "kernels/backend.h"
#include "kernels/tensor.h"
#include "model/weights/linear_weights.h"

namespace recurve {

// A weight matrix from values that the loader has put in the order the kernels want. For the small
// ones: recurrent and block-diagonal matrices, whose layout differs from package to package.
class HostMatrix {
 public:
  HostMatrix() = default;

  // values: (N, K) row-major; none if a tensor is missing, which checkpoint.finish() then reports.
  // Rounds to nearest even for BF16.
  HostMatrix(Backend& backend, const std::vector<float>& values, int64_t K, const OtherType& type);

  const Matrix& matrix() const { return matrix_; }
  int64_t count() const { return matrix_.N * matrix_.K; }
  size_t bytes() const { return data_.bytes(); }

 private:
  Matrix matrix_;
  Buffer data_;  // (N, K)
};

}  // namespace recurve
