#pragma once
#include <cstddef>
#include <cstdint>

namespace recurve {

// kPacked: of a weight matrix whose values do not stand one after the other, see WeightFormat.
enum class DType : uint8_t { kF32, kBF16, kF16, kI32, kPacked };

// Bytes of one value; 0 for kPacked, where only the format knows.
constexpr size_t size_of(DType type) {
  switch (type) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kPacked:
      break;
  }
  return 0;
}

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
    case DType::kPacked:
      return "packed";
  }
  return "?";
}

struct WeightFormat;

// A weight matrix in the memory of one backend, as in `y = W x`: one row an output. Every kernel
// that multiplies with one accepts F32 and BF16; other formats are for those that say so, see
// LinearOp::packed.
struct Matrix {
  DType dtype = DType::kF32;
  int64_t N = 0;               // rows: outputs
  int64_t K = 0;               // columns: inputs
  const void* data = nullptr;  // (N, K) row-major, 64-byte aligned; of kPacked: N rows of `format`
  const WeightFormat* format = nullptr;  // of kPacked: how its values lie; null otherwise
  const void* scales = nullptr;          // of kPacked: N rows of what `format` stores with them
  // The number of the layer whose matrix it is, by which adapters know it (lora.h); -1: none can
  // change it.
  int32_t layer = -1;
  // Column by column, see WeightFormat::transpose: for a linear layer whose x is mostly zeros, as
  // columns of zeros need not be read then. Only for the op linear that takes it, see
  // LinearOp::transposed.
  bool transposed = false;
};

// One array of an op's states, of all slots, in the memory of one backend: F32 or BF16. Ops compute
// in fp32 whichever it is. What is kept in BF16 is rounded, to nearest even, at the end of each
// chunk of a sequence, so that bits do not depend on how a prompt is split between calls; outputs
// are of the state before it is rounded.
struct StateData {
  StateData() = default;
  StateData(float* values) : data(values) {}  // a state in F32 is a plain pointer elsewhere
  StateData(void* values, DType type) : data(values), dtype(type) {}

  float* f32() const { return static_cast<float*>(data); }  // of a state in F32

  void* data = nullptr;
  DType dtype = DType::kF32;
};

}  // namespace recurve
