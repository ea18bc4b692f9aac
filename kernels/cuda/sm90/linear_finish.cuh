#pragma once
#include <algorithm>

#include "kernels/cuda/sm90/linear_ahead.cuh"
#include "kernels/cuda/sm90/linear_wide_finish.cuh"

// The end of a linear layer: the sums of the parts of K, and what is done to them.
namespace recurve::cuda::sm90 {

// Rows whose reads a thread has on their way at once: as many as there are registers for. Of wide
// tiles few come here, and what is short is fetched soon.
template <typename T>
constexpr int kReads = T::kWide || T::kBlocks == 3 ? 2 : 4;
template <typename T, int kParts>
constexpr int kAtOnce = std::max(1, kReads<T> / kParts);

// Instead of finish, of columns that go through the convolution.
template <typename T, int kParts>
__device__ void convolve(const Task& task, const Place& place, const Shared<T>& shared,
                         Ahead<T>& ahead) {
  const Share& share = ahead.share;
  const int d = share.output - task.conv_first;
  if (!kHoldsConvolution<T>) ahead.conv.channels.load_weights(task.conv, d);
  for (int row = share.begin; row < share.rows; row += share.step) {
    float* state = conv_state(task.conv, place.x_row + row, d);
    if (!kHoldsConvolution<T>) ahead.conv.load_past(state);
    float4 x = sum_of_parts<kParts>(&shared.sums()[row][share.m], 0);
    if (task.scaled()) x = x * shared.scales[row];
    ahead.conv.end(task.conv, place.x_row + row, d, x + ahead.bias, state);
  }
}

// Begins the norm of what reads y: of four outputs of a row, with the thread that has those beside
// them.
__device__ inline void begin_norm(const Task& task, int row, int output, const float4& y,
                                  const float4& w) {
  const int64_t at = static_cast<int64_t>(row) * task.outputs + output;
  store4_bf16(task.next.x + at, y * w, 4, true);
  const float squares = sum_of_eight(squares_of(y));
  if (output % BegunNorm::kSquares == 0) task.next.squares[at / BegunNorm::kSquares] = squares;
  if (output == 0) task.next.scales[row] = 0;
}

// This block's share of the tile's outputs. All computing threads. A thread reads several of its
// rows before it writes one, as the residual may stand where they go.
template <typename T, int kParts>
__device__ void finish(const Task& task, const Place& place, const Shared<T>& shared,
                       Ahead<T>& ahead) {
  const typename Shared<T>::Sums& sums = shared.sums();
  const Share& share = ahead.share;
  if (share.count == 0) return;
  const int m = share.m, output = share.output, count = share.count, step = share.step;
  const int up_m = task.box_rows + m;
  const int64_t start = static_cast<int64_t>(place.x_row) * task.outputs + output;
  if constexpr (kConvolves<T>) {
    if (ahead.convolves(task)) return convolve<T, kParts>(task, place, shared, ahead);
  }
  float4 next_norm = ahead.next_norm;
  if (kNotesScales<T> && task.next.x != nullptr) {
    next_norm = load4(task.next_norm + output, 4, true);
  }
  constexpr int kRows = kIsForFew<T> ? 1 : kAtOnce<T, kParts>;
  for (int begin = share.begin; begin < share.rows; begin += kRows * step) {
    float4 y[kRows], up[kRows], residual[kRows];
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const int row = begin + j * step;
      if (row >= share.rows) break;
      if (kIsForFew<T>) {
        residual[j] = ahead.residual;
      } else if (task.residual != nullptr) {
        const float* from = task.residual + start + static_cast<int64_t>(row) * task.outputs;
        residual[j] = load4(from, count, task.vector);
      }
      y[j] = sum_of_parts<kParts>(&sums[row][m], place.first_rank);
      if (task.swiglu) up[j] = sum_of_parts<kParts>(&sums[row][up_m], place.first_rank);
    }
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const int row = begin + j * step;
      if (row >= share.rows) break;
      if (task.scaled() && !scales_first<T>(task)) {
        y[j] = y[j] * shared.scales[row];
        if (task.swiglu) up[j] = up[j] * shared.scales[row];
      }
      float4 out = y[j] + ahead.bias;
      if (task.swiglu) out = swish(out, up[j] + ahead.up_bias);
      if (task.soft_cap > 0) out = soft_cap(out, task.soft_cap);
      if (task.residual != nullptr) out = out + residual[j];
      const int64_t at = start + static_cast<int64_t>(row) * task.outputs;
      if (task.y_bf16 != nullptr) {
        store4_bf16(task.y_bf16 + at, out, count, task.vector);
      } else {
        store4(task.y + at, out, count, task.vector);
      }
      if constexpr (kBeginsNorms<T>) {
        if (task.next.x != nullptr) begin_norm(task, place.x_row + row, output, out, next_norm);
      }
    }
  }
}

template <typename T>
__device__ void finish(const Task& task, const Place& place, const Shared<T>& shared,
                       Ahead<T>& ahead) {
  if constexpr (T::kWide) {
    if (copies_out<T>(task)) return copy_out<T>(task, place, shared, ahead);
    if (gates_out<T>(task) && task.parts == 1) return gate_out<T, 1>(task, place, shared, ahead);
    if (gates_out<T>(task)) return gate_out<T, 2>(task, place, shared, ahead);
  }
  if (task.parts == 1) return finish<T, 1>(task, place, shared, ahead);
  if (T::kWide || task.parts == 2) return finish<T, 2>(task, place, shared, ahead);
  if constexpr (!T::kWide) {  // a power of two, at most 8
    if (task.parts == 4) return finish<T, 4>(task, place, shared, ahead);
    finish<T, 8>(task, place, shared, ahead);
  }
}

}  // namespace recurve::cuda::sm90
