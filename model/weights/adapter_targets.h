#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace recurve {

// Rows of a matrix or of a tensor that follow each other.
struct RowRange {
  int64_t first, count;
};

// The tensors of a model that adapters can change: those of linear layers that nothing but
// LinearOp multiplies with. Loading records them; see Checkpoint::adapter_targets().
class AdapterTargets {
 public:
  // One tensor (rows, K). It is some rows of a matrix.
  struct Tensor {
    int32_t layer = -1;  // Matrix::layer of the matrix
    int64_t first = 0;   // row of the matrix that its rows begin at
    int64_t rows = 0;
    int64_t K = 0;
    std::vector<RowRange> order = {};  // its rows in the order of the matrix; empty: in their own
  };

  // The number that the next matrix has as Matrix::layer.
  int32_t add_layer() { return layers_++; }
  // name: of the tensor in the checkpoint, "backbone.layers.0.mixer.in_proj.weight".
  void add(std::string_view name, const Tensor& tensor);

  int32_t layers() const { return layers_; }  // matrices
  // The most floats that a row of a layer has as its input and its output together.
  int64_t widest() const { return widest_; }
  int64_t most_tensors() const { return most_tensors_; }  // of a matrix

  // By the path of the module in transformers, "model.layers.0.self_attn.q_proj". What precedes
  // "layers." or "blocks." may be another prefix than in the checkpoint, as a model of text alone
  // and one of text and pictures have different ones. Null: adapters cannot change it.
  const Tensor* find(std::string_view module) const;
  // By module, from "layers." or "blocks." on.
  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }
  // Modules without what precedes "layers.", each of all layers once: "layers.*.mixer.in_proj".
  std::vector<std::string> patterns() const;

 private:
  std::map<std::string, Tensor, std::less<>> tensors_;
  std::vector<int64_t> outputs_;         // of each layer, so far
  std::vector<int64_t> count_of_layer_;  // tensors, so far
  int32_t layers_ = 0;
  int64_t widest_ = 0, most_tensors_ = 0;
};

}  // namespace recurve
