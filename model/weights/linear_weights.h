#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/tensor.h"
#include "model/weights/checkpoint.h"

namespace recurve {

// The weights of one linear layer in the memory of a backend, with an optional bias in fp32. Made
// of one or several tensors of the checkpoint, stacked by rows in the order given: the loader
// fuses matrices by name, so that the order in the file never matters.
class LinearWeights {
 public:
  struct Part {
    Part(std::string weight_name, int64_t row_count, std::string bias_name = {})
        : name(std::move(weight_name)), rows(row_count), bias(std::move(bias_name)) {}
    std::string name;
    int64_t rows;
    std::string bias;  // name of its (rows) bias; empty: no bias, zeros if another part has one
  };

  LinearWeights() = default;

  // Takes (rows, K) of each part, and allocates. The values arrive with checkpoint.finish(); if
  // something does not fit, that throws, and there is nothing allocated here.
  static LinearWeights load(Backend& backend, Checkpoint& checkpoint,
                            const std::vector<Part>& parts, int64_t K, DType dtype);

  const Matrix& matrix() const { return matrix_; }               // (N, K)
  const float* bias() const { return bias_.as<const float>(); }  // (N) or null
  size_t bytes() const { return data_.bytes() + bias_.bytes(); }

 private:
  Matrix matrix_;
  Buffer data_;  // (N, K) of matrix_.dtype
  Buffer bias_;  // (N) fp32
};

// Norm weights, biases and the like: fp32 in the memory of a backend.
class VectorWeights {
 public:
  VectorWeights() = default;

  // In any of the shapes, e.g. {{4096}, {8, 512}}: all of as many elements.
  static VectorWeights load(Backend& backend, Checkpoint& checkpoint, const std::string& name,
                            const std::vector<Shape>& shapes);
  // From values the loader computed. (values.size())
  static VectorWeights from(Backend& backend, const std::vector<float>& values);

  const float* data() const { return data_.as<const float>(); }  // (size)
  int64_t size() const { return size_; }
  size_t bytes() const { return data_.bytes(); }

 private:
  int64_t size_ = 0;
  Buffer data_;
};

}  // namespace recurve
