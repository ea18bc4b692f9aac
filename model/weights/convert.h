#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/tensor.h"
#include "model/weights/tensor_view.h"

namespace recurve {

float f16_to_f32(uint16_t bits);  // exact

// Writes a weight tensor (F32, F16, BF16 or generated) as F32 or BF16, row-major. Mapped pages of
// the source are released behind it; large parts are shared among threads. Throws
// std::runtime_error if the file has shrunk or fails. out: (view.count()) elements of type `to`.
void convert(const TensorView& view, DType to, std::byte* out);

// The same for the elements [begin, end) of the row-major order.
void convert_elements(const TensorView& view, int64_t begin, int64_t end, DType to, std::byte* out);

// Whether that copies the bytes as they are.
bool keeps_bytes(StoredType from, DType to);

// The bytes of the elements [begin, end) as they are stored, of a tensor of any type that is in a
// file. Mapped pages are released behind it.
void copy_stored(const TensorView& view, int64_t begin, int64_t end, std::byte* out);

// Writes the rows [begin, end) of a matrix in a format, whatever they are stored in.
// data, scales: (end - begin) rows of the format's own sizes.
void convert_matrix(const StoredMatrix& matrix, int64_t begin, int64_t end, const WeightFormat& to,
                    std::byte* data, std::byte* scales);

// Whether two tensors have one type, one shape and the same values, NaN being equal to itself.
// Reads both in pieces, up to the first that differs.
bool same_values(const TensorView& one, const TensorView& other);

// The whole tensor on the host, for loaders that compute with it. (count()); empty if not present.
std::vector<float> host_values(const TensorView& view);

}  // namespace recurve
