#pragma once
#include <cstddef>
#include <cstdint>

namespace recurve {

enum class DType : uint8_t { kF32, kBF16, kF16, kI32 };

constexpr size_t size_of(DType type) { return type == DType::kF32 || type == DType::kI32 ? 4 : 2; }

constexpr const char* name_of(DType type) {
  switch (type) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kI32:
      return "I32";
  }
  return "?";
}

// A weight matrix in the memory of one backend, as in `y = W x`: one row an output.
// The kernels accept F32 and BF16.
struct Matrix {
  DType dtype = DType::kF32;
  int64_t N = 0;               // rows: outputs
  int64_t K = 0;               // columns: inputs
  const void* data = nullptr;  // (N, K) row-major, 64-byte aligned
};

}  // namespace recurve
