#pragma once
#include <algorithm>

#include "kernels/cuda/sm80/rows/activate.cuh"
#include "kernels/cuda/sm90/linear/linear_ahead.cuh"
#include "kernels/cuda/sm90/linear/linear_lora.cuh"
#include "kernels/cuda/sm90/linear/linear_wide_finish.cuh"

// The end of a linear layer: the sums of the parts of K, and what is done to them.
namespace recurve::cuda::sm90 {

// Rows whose reads a thread has on their way at once: as many as there are registers for. Of wide
// tiles few come here, and what is short is fetched soon.
template <typename T>
constexpr int kReads = T::kWide || T::kBlocks == 3 ? 2 : 4;
template <typename T, int kParts>
constexpr int kAtOnce = std::max(1, kReads<T> / kParts);

// Does what finish() does for columns that go through the convolution.
template <typename T, int kParts, Ends kEnds>
__device__ void convolve(const LinearParams& params, const BlockCoord& block,
                         const Shared<T>& shared, Ahead<T>& ahead) {
  const OutputSlice& slice = ahead.slice;
  const int d = slice.output - params.conv_first;
  if (!kHoldsConvolution<T>) ahead.conv.channels.load_weights(params.conv, d);
  for (int row = slice.begin; row < slice.rows; row += slice.step) {
    float* state = conv_state(params.conv, block.x_row + row, d);
    if (!kHoldsConvolution<T>) ahead.conv.load_past(state);
    float4 x = sum_of_parts<kParts>(&shared.sums()[row][slice.m], 0);
    if (params.scaled()) x = x * shared.scales[row];
    x = x + ahead.bias;
    if (has_lora<T, kEnds>(params, row)) x = x + shared.added(params, row, slice.m);
    ahead.conv.end(params.conv, block.x_row + row, d, x, state);
  }
}

// Begins the norm of what reads y: of four outputs of a row, with the thread that has those next to
// them.
__device__ inline void defer_norm(const LinearParams& params, int row, int output, const float4& y,
                                  const float4& w) {
  const int64_t at = static_cast<int64_t>(row) * params.outputs + output;
  store4_bf16(params.next.x + at, y * w, 4, true);
  const float squares = sum_of_eight(squares_of(y));
  if (output % DeferredRmsNorm::kSquares == 0)
    params.next.squares[at / DeferredRmsNorm::kSquares] = squares;
  if (output == 0) params.next.scales[row] = 0;
}

__device__ inline float4 activate_output(Activation f, const float4& x) {
  return make_float4(sm80::activate_output(f, x.x), sm80::activate_output(f, x.y),
                     sm80::activate_output(f, x.z), sm80::activate_output(f, x.w));
}

// This block's share of the tile's outputs. All computing threads. A thread reads several of its
// rows before it writes one, as the residual may stand where they go.
template <typename T, int kParts, Ends kEnds>
__device__ void finish(const LinearParams& params, const BlockCoord& block, const Shared<T>& shared,
                       Ahead<T>& ahead) {
  const typename Shared<T>::Sums& sums = shared.sums();
  const OutputSlice& slice = ahead.slice;
  if (slice.count == 0) return;
  const int m = slice.m, output = slice.output, count = slice.count, step = slice.step;
  const int up_m = params.box_rows + m;
  const int64_t start = static_cast<int64_t>(block.x_row) * params.outputs + output;
  if constexpr (kConvolves<T>) {
    if (ahead.convolves(params)) return convolve<T, kParts, kEnds>(params, block, shared, ahead);
  }
  float4 next_norm = ahead.next_norm;
  if (kNotesScales<T> && params.next.x != nullptr) {
    next_norm = load4(params.next_norm + output, 4, true);
  }
  constexpr int kRows = kIsForFew<T> ? 1 : kAtOnce<T, kParts>;
  for (int begin = slice.begin; begin < slice.rows; begin += kRows * step) {
    float4 y[kRows], up[kRows], residual[kRows];
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const int row = begin + j * step;
      if (row >= slice.rows) break;
      if (kIsForFew<T>) {
        residual[j] = ahead.residual;
      } else if (params.residual != nullptr) {
        const float* from = params.residual + start + static_cast<int64_t>(row) * params.outputs;
        residual[j] = load4(from, count, params.vector);
      }
      y[j] = sum_of_parts<kParts>(&sums[row][m], block.first_rank);
      if (params.swiglu) up[j] = sum_of_parts<kParts>(&sums[row][up_m], block.first_rank);
    }
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const int row = begin + j * step;
      if (row >= slice.rows) break;
      if (params.scaled() && !scales_first<T>(params)) {
        y[j] = y[j] * shared.scales[row];
        if (params.swiglu) up[j] = up[j] * shared.scales[row];
      }
      float4 out = y[j] + ahead.bias;
      const bool adapted = has_lora<T, kEnds>(params, row);
      if (params.swiglu) {
        up[j] = up[j] + ahead.up_bias;
        if (adapted) {
          out = out + shared.added(params, row, m);
          up[j] = up[j] + shared.added(params, row, up_m);
        }
        out = swish(out, up[j]);
      }
      if (params.soft_cap > 0) out = soft_cap(out, params.soft_cap);
      if (params.residual != nullptr) out = out + residual[j];
      if (adapted && !params.swiglu) out = out + shared.added(params, row, m);
      if constexpr (kEnds != Ends::kPlain) out = activate_output(params.activation, out);
      const int64_t at = start + static_cast<int64_t>(row) * params.outputs;
      if (params.y_bf16 != nullptr) {
        store4_bf16(params.y_bf16 + at, out, count, params.vector);
      } else {
        store4(params.y + at, out, count, params.vector);
      }
      if constexpr (kDefersNorms<T>) {
        if (params.next.x != nullptr) defer_norm(params, block.x_row + row, output, out, next_norm);
      }
    }
  }
}

template <typename T, Ends kEnds>
__device__ void finish(const LinearParams& params, const BlockCoord& block, const Shared<T>& shared,
                       Ahead<T>& ahead) {
  if constexpr (T::kWide) {
    if (copies_out<T>(params)) return copy_out<T>(params, block, shared, ahead);
    if (gates_out<T>(params) && params.parts == 1)
      return gate_out<T, 1>(params, block, shared, ahead);
    if (gates_out<T>(params)) return gate_out<T, 2>(params, block, shared, ahead);
  }
  if (params.parts == 1) return finish<T, 1, kEnds>(params, block, shared, ahead);
  if (T::kWide || params.parts == 2) return finish<T, 2, kEnds>(params, block, shared, ahead);
  if constexpr (!T::kWide) {  // a power of two, at most 8
    if (params.parts == 4) return finish<T, 4, kEnds>(params, block, shared, ahead);
    finish<T, 8, kEnds>(params, block, shared, ahead);
  }
}

}  // namespace recurve::cuda::sm90
