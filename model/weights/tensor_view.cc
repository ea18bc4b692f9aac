#include "model/weights/tensor_view.h"

#include <fmt/format.h>

#include <array>

#include "kernels/check.h"
#include "model/weights/safetensors.h"

namespace recurve {
namespace {

struct TypeInfo {
  const char* name;
  size_t bytes;
};

// In the order of StoredType.
constexpr std::array<TypeInfo, 15> kTypes{{
    {"BOOL", 1},
    {"U8", 1},
    {"I8", 1},
    {"F8_E5M2", 1},
    {"F8_E4M3", 1},
    {"I16", 2},
    {"U16", 2},
    {"F16", 2},
    {"BF16", 2},
    {"I32", 4},
    {"U32", 4},
    {"F32", 4},
    {"F64", 8},
    {"I64", 8},
    {"U64", 8},
}};
static_assert(static_cast<size_t>(StoredType::kU64) + 1 == kTypes.size());

constexpr size_t kMaxQuoted = 200;  // characters of a name in a message

}  // namespace

std::optional<StoredType> stored_type_from(std::string_view name) {
  for (size_t i = 0; i < kTypes.size(); ++i) {
    if (name == kTypes[i].name) return static_cast<StoredType>(i);
  }
  return std::nullopt;
}

const char* name_of(StoredType type) { return kTypes[static_cast<size_t>(type)].name; }

size_t size_of(StoredType type) { return kTypes[static_cast<size_t>(type)].bytes; }

int64_t TensorView::count() const {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

std::string TensorView::path() const { return file != nullptr ? file->path() : "(random)"; }

StoredMatrix rows_of(const StoredMatrix& matrix, int64_t first, int64_t count) {
  StoredMatrix some = matrix;
  for (TensorView* view : {&some.values, &some.scales}) {
    if (!view->present()) continue;
    CHECK(view->file != nullptr && first + count <= view->rows());
    const size_t row = view->bytes / static_cast<size_t>(view->rows());
    view->data += static_cast<size_t>(first) * row;
    view->bytes = static_cast<size_t>(count) * row;
    view->shape.front() = count;
    view->some_rows = true;
  }
  return some;
}

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text.substr(0, kMaxQuoted)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out + (text.size() > kMaxQuoted ? "\"..." : "\"");
}

std::string joined(const std::vector<std::string>& texts, std::string_view separator) {
  std::string out;
  for (const std::string& text : texts) {
    if (&text != &texts.front()) out += separator;
    out += text;
  }
  return out;
}

std::string shape_text(const Shape& shape) {
  std::vector<std::string> extents;
  for (const int64_t extent : shape) extents.push_back(std::to_string(extent));
  return fmt::format("[{}]", joined(extents, ", "));
}

std::string type_and_shape(const TensorView& view) {
  return fmt::format("{} {}", name_of(view.type), shape_text(view.shape));
}

std::optional<int64_t> checked_product(int64_t a, int64_t b) {
  int64_t product;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

std::optional<int64_t> checked_count(const Shape& shape) {
  std::optional<int64_t> n = 1;
  for (const int64_t extent : shape) {
    if (n) n = checked_product(*n, extent);
  }
  return n;
}

}  // namespace recurve
