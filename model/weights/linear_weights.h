#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/tensor.h"
#include "kernels/weight_format.h"
#include "model/weights/checkpoint.h"

namespace recurve {

// The backend has no linear layers for a format of weights.
class MissingFormat : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// In which format a matrix is loaded.
struct WeightChoice {
  const WeightFormat* format;  // of one that is stored as F32, F16 or BF16
  bool as_stored = false;      // one that is stored in another format stays in that
  bool adapts = true;          // adapters can change it: only LinearOp multiplies with it
  // What it is multiplied with is mostly zeros: it is transposed where the backend takes that, see
  // Matrix::transposed, and then never mapped. Only LinearOp multiplies with it.
  bool sparse_input = false;

  WeightChoice without_adapters() const { return {format, as_stored, false}; }
  WeightChoice with_sparse_input() const { return {format, as_stored, adapts, true}; }
};

// In which type a matrix is loaded that other ops multiply with.
struct OtherType {
  OtherType(DType type, bool is_exact = false) : dtype(type), exact(is_exact) {}
  DType dtype;  // F32 or BF16
  bool exact;   // F32 where BF16 would round what is stored
};

// In which formats the matrices of a model are loaded.
struct WeightFormats {
  // All in one; where they are stored with scales they stay so unless `converted`.
  WeightFormats(const WeightFormat& format, bool converted);
  WeightFormats(DType dtype) : WeightFormats(format_of(dtype), false) {}
  // By the names of kernels/weight_formats.h, or "auto": bf16, or with scales if it is stored so.
  // tokens: of the embedding and the head; empty: as `linear`.
  static WeightFormats named(std::string_view linear, std::string_view tokens = {});

  WeightChoice linear;  // of the linear layers
  WeightChoice tokens;  // of the embedding and of the matrix of the logits
  OtherType others;
  // For this checkpoint. Where linear layers are packed, here or in the file, the other matrices
  // stay as they are stored; where they become BF16, so do the others, and random ones.
  WeightFormats resolved(const Checkpoint& checkpoint) const;
};

// The weights of one linear layer in the memory of a backend or, see Checkpoint::map_weights(), in
// the mapped file, with an optional bias in fp32. Made
// of one or several tensors of the checkpoint, stacked by rows in the order given: the loader
// fuses matrices by name, so that the order in the file never matters.
class LinearWeights {
 public:
  using Rows = RowRange;
  struct Part {
    Part(std::string weight_name, int64_t row_count, std::string bias_name = {})
        : name(std::move(weight_name)), rows(row_count), bias(std::move(bias_name)) {}
    std::string name;
    int64_t rows;
    std::string bias;  // name of its (rows) bias; empty: no bias, zeros if another part has one
    Shape shape = {};  // of the tensor; empty: (rows, K)
    // The tensor's rows in the order of the matrix, all of them; empty: in their own. Without bias.
    std::vector<Rows> order = {};
  };

  LinearWeights() = default;

  // Takes (rows, K) of each part, and allocates. The values arrive with checkpoint.finish(); if
  // something does not fit, that throws, and there is nothing allocated here. For matrices that
  // only the linear layers multiply with: the checkpoint records them for adapters. Throws
  // MissingFormat if the backend has none for it.
  static LinearWeights load(Backend& backend, Checkpoint& checkpoint,
                            const std::vector<Part>& parts, int64_t K, const WeightChoice& choice);
  // For matrices of any op.
  static LinearWeights load(Backend& backend, Checkpoint& checkpoint,
                            const std::vector<Part>& parts, int64_t K, const OtherType& type);

  const Matrix& matrix() const { return matrix_; }               // (N, K)
  const float* bias() const { return bias_.as<const float>(); }  // (N) or null
  size_t bytes() const { return data_.bytes() + scales_.bytes() + bias_.bytes() + mapped_bytes_; }

 private:
  static LinearWeights load_taken(Backend& backend, Checkpoint& checkpoint,
                                  const std::vector<StoredMatrix>& weights,
                                  const std::vector<Part>& parts, const WeightFormat& format,
                                  bool sparse_input = false);
  void allocate(Backend& backend, const std::string& where);
  void map(Checkpoint& checkpoint, const StoredMatrix& stored);

  Matrix matrix_;
  Buffer data_;    // (N, K) in the matrix's format, or transposed
  Buffer scales_;  // what the format stores with them, if anything
  Buffer bias_;    // (N) fp32
  // Of a matrix that is used in place, instead of data_ and scales_.
  Checkpoint::Files files_;
  size_t mapped_bytes_ = 0;
};

// Norm weights, biases and other vectors: fp32 in the memory of a backend.
class VectorWeights {
 public:
  VectorWeights() = default;

  // In any of the shapes, e.g. {{4096}, {8, 512}}: all of as many elements.
  static VectorWeights load(Backend& backend, Checkpoint& checkpoint, const std::string& name,
                            const std::vector<Shape>& shapes);
  // Of a norm whose file has what its weights are more than 1.
  static VectorWeights load_unit_offset(Backend& backend, Checkpoint& checkpoint,
                                        const std::string& name, int64_t size);
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
