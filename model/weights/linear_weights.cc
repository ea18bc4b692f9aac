#include "model/weights/linear_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "kernels/check.h"
#include "kernels/fusion.h"
#include "kernels/weight_formats.h"
#include "model/weights/convert.h"

namespace recurve {
namespace {

// Bytes of N rows of `row` bytes.
size_t matrix_bytes(int64_t N, int64_t row, const Matrix& matrix, const std::string& where) {
  const auto bytes = checked_product(N, row);
  if (!bytes) {
    throw std::runtime_error(fmt::format("{}: wanted a matrix that fits memory, found {} x {}",
                                         where, matrix.N, matrix.K));
  }
  return static_cast<size_t>(*bytes);
}

void check_format(const Backend& backend, const WeightFormat& format) {
  const LinearOp& linear = backend.kernels().linear;
  if (!format.packed() || linear.find(&format) != nullptr) return;
  std::string others = "f32, bf16";
  for (const LinearOp::Packed& one : linear.packed) others += fmt::format(", {}", one.format->name);
  throw MissingFormat(
      fmt::format("backend '{}' cannot take weights in {}: it has linear layers for {}; choose one "
                  "with --weights, or use the device cpu",
                  backend.name(), format.name, others));
}

// Stacked tensors become one matrix, so they are of one format.
const WeightFormat& chosen(const WeightChoice& choice, const std::vector<StoredMatrix>& parts) {
  if (choice.as_stored) {
    for (const StoredMatrix& part : parts) {
      if (part.format != nullptr) return *part.format;
    }
  }
  return *choice.format;
}

// The pieces of a part in the order of the matrix, with their rows. Random ones have none.
std::vector<std::pair<StoredMatrix, int64_t>> ordered(const LinearWeights::Part& part,
                                                      const StoredMatrix& stored) {
  if (part.order.empty() || stored.values.generated) return {{stored, part.rows}};
  std::vector<std::pair<StoredMatrix, int64_t>> pieces;
  for (const auto& [first, count] : part.order) {
    pieces.emplace_back(rows_of(stored, first, count), count);
  }
  return pieces;
}

// Whether the rows of a part can be outputs of a Matrix::transposed, wherever they stand there.
bool can_transpose(const LinearWeights::Part& part, const WeightFormat& format) {
  const auto whole = [&](int64_t rows) { return rows % format.outputs_together == 0; };
  return whole(part.rows) &&
         std::ranges::all_of(part.order, [&](const auto& piece) { return whole(piece.count); });
}

DType chosen(const OtherType& type, const std::vector<StoredMatrix>& parts) {
  const auto rounded = [](const StoredMatrix& part) {
    return part.format != nullptr || part.values.type != StoredType::kBF16;
  };
  return type.exact && std::ranges::any_of(parts, rounded) ? DType::kF32 : type.dtype;
}

// The number that the matrix of these parts gets.
int32_t record(AdapterTargets& targets, const std::vector<LinearWeights::Part>& parts, int64_t K) {
  const int32_t layer = targets.add_layer();
  int64_t first = 0;
  for (const LinearWeights::Part& part : parts) {
    targets.add(part.name,
                {.layer = layer, .first = first, .rows = part.rows, .K = K, .order = part.order});
    first += part.rows;
  }
  return layer;
}

std::vector<StoredMatrix> take_all(Checkpoint& checkpoint,
                                   const std::vector<LinearWeights::Part>& parts, int64_t K) {
  std::vector<StoredMatrix> matrices;
  for (const LinearWeights::Part& part : parts) {
    matrices.push_back(checkpoint.take_matrix(part.name, part.rows, K, part.shape));
  }
  return matrices;
}

}  // namespace

WeightFormats::WeightFormats(const WeightFormat& format, bool converted)
    : linear{&format, !converted},
      tokens{&format, !converted, false},
      others(format.packed() ? DType::kBF16 : format.dtype, format.packed() || !converted) {}

WeightFormats WeightFormats::resolved(const Checkpoint& checkpoint) const {
  WeightFormats formats = *this;
  const bool packed = linear.format->packed() || (linear.as_stored && checkpoint.is_packed());
  formats.others.exact = others.exact && packed && !checkpoint.is_random();
  return formats;
}

WeightFormats WeightFormats::named(std::string_view linear, std::string_view tokens) {
  const auto formats = [](std::string_view name) -> WeightFormats {
    if (name == "auto") return DType::kBF16;
    const WeightFormat* format = find_weight_format(name);
    if (format != nullptr) return {*format, true};
    throw std::runtime_error(
        fmt::format("wanted weights in auto, {}, found \"{}\"", weight_format_names(), name));
  };
  WeightFormats result = formats(linear);
  if (!tokens.empty()) result.tokens = formats(tokens).tokens;
  return result;
}

LinearWeights LinearWeights::load(Backend& backend, Checkpoint& checkpoint,
                                  const std::vector<Part>& parts, int64_t K,
                                  const OtherType& type) {
  const std::vector<StoredMatrix> weights = take_all(checkpoint, parts, K);
  return load_taken(backend, checkpoint, weights, parts, format_of(chosen(type, weights)));
}

LinearWeights LinearWeights::load(Backend& backend, Checkpoint& checkpoint,
                                  const std::vector<Part>& parts, int64_t K,
                                  const WeightChoice& choice) {
  const std::vector<StoredMatrix> weights = take_all(checkpoint, parts, K);
  LinearWeights result =
      load_taken(backend, checkpoint, weights, parts, chosen(choice, weights), choice.sparse_input);
  if (choice.adapts) result.matrix_.layer = record(checkpoint.adapter_targets(), parts, K);
  return result;
}

LinearWeights LinearWeights::load_taken(Backend& backend, Checkpoint& checkpoint,
                                        const std::vector<StoredMatrix>& weights,
                                        const std::vector<Part>& parts, const WeightFormat& format,
                                        bool sparse_input) {
  std::vector<TensorView> biases;
  bool any_bias = false;
  int64_t N = 0;
  for (const Part& part : parts) {
    biases.push_back(part.bias.empty() ? TensorView{} : checkpoint.take(part.bias, {part.rows}));
    any_bias = any_bias || !part.bias.empty();
    N += part.rows;
  }
  const int64_t K = weights.front().K;
  check_format(backend, format);
  LinearWeights result;
  Matrix& matrix = result.matrix_;
  matrix = {.dtype = format.dtype, .N = N, .K = K, .format = format.packed() ? &format : nullptr};
  matrix.transposed =
      sparse_input && is_transposed_for_zeros(backend.kernels(), format) &&
      std::ranges::all_of(parts, [&](const Part& part) { return can_transpose(part, format); });
  if (!checkpoint.ok()) return result;

  const bool one = parts.size() == 1 && parts.front().order.empty();
  const bool mapped = one && !matrix.transposed && backend.computes_on_host() &&
                      checkpoint.can_map(weights.front(), format);
  mapped ? result.map(checkpoint, weights.front()) : result.allocate(backend, checkpoint.where());
  if (any_bias) result.bias_ = backend.allocate(static_cast<size_t>(N) * sizeof(float));
  const int64_t row_bytes = format.row_bytes(K), row_scales = format.row_scales(K);
  int64_t row = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (any_bias) {
      checkpoint.copy_on_finish(biases[i], DType::kF32, backend, result.bias_.as<float>() + row);
    }
    if (mapped) continue;
    for (const auto& [from, count] : ordered(parts[i], weights[i])) {
      if (matrix.transposed) {
        checkpoint.copy_transposed_on_finish(from, format, backend, result.data_.data(),
                                             result.scales_.data(), row, N);
      } else {
        std::byte* const scales =
            row_scales > 0 ? result.scales_.data() + row * row_scales : nullptr;
        checkpoint.copy_on_finish(from, format, backend, result.data_.data() + row * row_bytes,
                                  scales);
      }
      row += count;
    }
  }
  return result;
}

void LinearWeights::allocate(Backend& backend, const std::string& where) {
  const WeightFormat& format = format_of(matrix_);
  const int64_t N = matrix_.N, K = matrix_.K;
  data_ = backend.allocate(matrix_bytes(N, format.row_bytes(K), matrix_, where));
  matrix_.data = data_.data();
  if (format.row_scales(K) == 0) return;
  scales_ = backend.allocate(matrix_bytes(N, format.row_scales(K), matrix_, where));
  matrix_.scales = scales_.data();
}

void LinearWeights::map(Checkpoint& checkpoint, const StoredMatrix& stored) {
  files_ = checkpoint.map_matrix(stored, format_of(matrix_));
  mapped_bytes_ = stored.values.bytes + stored.scales.bytes;
  matrix_.data = stored.values.data;
  matrix_.scales = stored.scales.data;
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

VectorWeights VectorWeights::load_unit_offset(Backend& backend, Checkpoint& checkpoint,
                                              const std::string& name, int64_t size) {
  std::vector<float> values = host_values(checkpoint.take(name, {size}));
  for (float& value : values) value += 1;
  return from(backend, values);
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
