#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace recurve {

class SafetensorsFile;
struct WeightFormat;

// The element types of the safetensors format. A weight may be F32, F16 or BF16; the others are
// listed, and refused when a model asks for the tensor.
enum class StoredType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64,
};

std::optional<StoredType> stored_type_from(std::string_view name);  // "BF16"; empty if unknown
const char* name_of(StoredType type);
size_t size_of(StoredType type);  // bytes of one element

constexpr bool is_weight_type(StoredType type) {
  return type == StoredType::kF32 || type == StoredType::kF16 || type == StoredType::kBF16;
}

using Shape = std::vector<int64_t>;  // outermost dimension first, as in PyTorch

// Values that are computed when they are read: approximately normal, a function of seed and
// position alone, so that any part can be read in any order. For benchmarks without files.
struct GeneratedValues {
  uint64_t seed = 0;
  float mean = 0;
  float stddev = 1;
};

// One tensor of a checkpoint. Valid as long as the checkpoint or file that gave it.
struct TensorView {
  std::string_view name;
  StoredType type = StoredType::kF32;
  Shape shape;
  const std::byte* data = nullptr;  // (shape) row-major, little-endian, of ANY alignment; null if
                                    // generated: read through model/weights/convert.h
  size_t bytes = 0;                 // count() * size_of(type)
  const SafetensorsFile* file = nullptr;     // where data is mapped from; null if generated
  std::optional<GeneratedValues> generated;  // set if there is no file
  bool some_rows = false;  // of the tensor of that name, whose hash this is no part of

  // False for the view that stands for a tensor which is missing or does not fit.
  bool present() const { return file != nullptr || generated.has_value(); }
  int64_t count() const;                                              // elements
  int64_t rows() const { return shape.empty() ? 1 : shape.front(); }  // extent of dimension 0
  std::string path() const;                                           // of the file; "(random)"
};

// A weight matrix (rows, K) as a checkpoint has it: one tensor of F32, F16 or BF16 or, in a format
// of kernels/weight_formats.h, the bytes of its rows and their scales.
struct StoredMatrix {
  TensorView values;
  int64_t K = 0;
  const WeightFormat* format = nullptr;  // null: one value after the other, of the type of `values`
  TensorView scales;                     // not present without a format
};

// Rows [first, first + count) of a matrix that has a file.
StoredMatrix rows_of(const StoredMatrix& matrix, int64_t first, int64_t count);

// For messages: `"name"` with control characters escaped and cut at 200 characters; `F32 [2, 3]`.
std::string in_quotes(std::string_view text);
std::string shape_text(const Shape& shape);
std::string type_and_shape(const TensorView& view);
std::string joined(const std::vector<std::string>& texts, std::string_view separator);

// a * b, or empty if the product does not fit or a factor is negative.
std::optional<int64_t> checked_product(int64_t a, int64_t b);
std::optional<int64_t> checked_count(const Shape& shape);

}  // namespace recurve
