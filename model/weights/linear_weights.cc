#include "model/weights/linear_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "kernels/check.h"

namespace recurve {
namespace {

size_t matrix_bytes(int64_t N, int64_t K, DType dtype, const std::string& where) {
  const auto count = checked_product(N, K);
  const auto bytes =
      count ? checked_product(*count, static_cast<int64_t>(size_of(dtype))) : std::nullopt;
  if (!bytes) {
    throw std::runtime_error(
        fmt::format("{}: wanted a matrix that fits memory, found {} x {}", where, N, K));
  }
  return static_cast<size_t>(*bytes);
}

}  // namespace

LinearWeights LinearWeights::load(Backend& backend, Checkpoint& checkpoint,
                                  const std::vector<Part>& parts, int64_t K, DType dtype) {
  CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  std::vector<TensorView> weights, biases;
  bool any_bias = false;
  LinearWeights result;
  result.matrix_ = Matrix{.dtype = dtype, .N = 0, .K = K, .data = nullptr};
  for (const Part& part : parts) {
    weights.push_back(checkpoint.take(part.name, {part.rows, K}));
    biases.push_back(part.bias.empty() ? TensorView{} : checkpoint.take(part.bias, {part.rows}));
    any_bias = any_bias || !part.bias.empty();
    result.matrix_.N += part.rows;
  }
  if (!checkpoint.ok()) return result;

  const int64_t N = result.matrix_.N;
  result.data_ = backend.allocate(matrix_bytes(N, K, dtype, checkpoint.where()));
  if (any_bias) result.bias_ = backend.allocate(static_cast<size_t>(N) * sizeof(float));
  result.matrix_.data = result.data_.data();
  int64_t row = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t offset = static_cast<size_t>(row * K) * size_of(dtype);
    checkpoint.copy_on_finish(weights[i], dtype, backend, result.data_.data() + offset);
    if (any_bias) {
      checkpoint.copy_on_finish(biases[i], DType::kF32, backend, result.bias_.as<float>() + row);
    }
    row += parts[i].rows;
  }
  return result;
}

VectorWeights VectorWeights::load(Backend& backend, Checkpoint& checkpoint, const std::string& name,
                                  const std::vector<Shape>& shapes) {
  const TensorView view = checkpoint.take_any({name}, shapes);
  VectorWeights result;
  if (!checkpoint.ok()) return result;
  result.size_ = view.count();
  result.data_ = backend.allocate(static_cast<size_t>(result.size_) * sizeof(float));
  checkpoint.copy_on_finish(view, DType::kF32, backend, result.data_.data());
  return result;
}

VectorWeights VectorWeights::from(Backend& backend, const std::vector<float>& values) {
  VectorWeights result;
  result.size_ = static_cast<int64_t>(values.size());
  result.data_ = backend.allocate(values.size() * sizeof(float));
  const std::unique_ptr<Stream> stream = backend.make_stream();
  backend.upload(result.data_.data(), values.data(), result.data_.bytes(), *stream);
  stream->wait();
  return result;
}

}  // namespace recurve
