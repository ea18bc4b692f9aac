#pragma once
#include <cuda.h>

#include "kernels/cuda/sm90/linear/box.h"
#include "kernels/ops/paged_attention.h"
#include "kernels/tensor.h"

namespace recurve::cuda::sm90 {

// A map for copies of boxes (box_rows, kBoxK) of the bf16 matrix into shared memory, in its swizzle
// of 128 bytes; what is outside the matrix comes as zeros. Rows begin at multiples of 16 bytes.
CUtensorMap tensor_map(const Matrix& matrix, int box_rows);

// The same for a matrix that is packed, which is bytes here: boxes (box_rows, bytes of so many
// groups), 32, 64 or 128 bytes wide and in the swizzle of as many.
CUtensorMap packed_tensor_map(const Matrix& matrix, int box_rows, int groups);

// The same as the first for copies of so many boxes side by side, one behind the other: their
// numbers are the third coordinate, and the first is 0. K is a multiple of kBoxK.
CUtensorMap tensor_map(const Matrix& matrix, int box_rows, int boxes);

// The same for the bytes of a matrix in any format: boxes (box_rows, kLineBytes), so many side by
// side. Rows are a multiple of kLineBytes long.
constexpr int kLineBytes = 128;
CUtensorMap line_map(const Matrix& matrix, int box_rows, int lines);

// Such a map for copies of boxes (box_rows, kFloatBox) of rows of floats, `stride` floats from
// each to the next. Rows begin at multiples of 16 bytes.
constexpr int kFloatBox = 32;
CUtensorMap tensor_map(const float* values, int rows, int columns, int64_t stride, int box_rows);

// Maps for copies of a head's keys of a page, as (D, kPageTokens), or of its values, as kPageTokens
// rows of 64 channels for each 64 of D: in bf16, D a multiple of 64 up to 256. load_boxes() takes
// the page and the head's first of HK D channels, load_page_boxes() the page and the head's first
// of HK kPageTokens tokens.
CUtensorMap key_page_map(const PagedData& keys, int HK, int D);
CUtensorMap value_page_map(const PagedData& values, int HK, int D);

}  // namespace recurve::cuda::sm90
