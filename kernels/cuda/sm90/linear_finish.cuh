#pragma once
#include <algorithm>

#include "kernels/cuda/sm80/causal_conv1d.cuh"
#include "kernels/cuda/sm90/linear_tile.cuh"

// The end of a linear layer: the sums of the parts of K, and what is done to them.
namespace recurve::cuda::sm90 {

__device__ inline float4 operator+(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Four values of the tile, of all parts of K.
template <int kParts>
__device__ inline float4 sum_of_parts(const float* mine, int first_rank) {
  float4 parts[kParts];
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    parts[part] =
        kParts == 1 ? *reinterpret_cast<const float4*>(mine) : load_shared(mine, first_rank + part);
  }
#pragma unroll
  for (int step = 1; step < kParts; step *= 2) {
#pragma unroll
    for (int part = 0; part < kParts; part += 2 * step) {
      parts[part] = parts[part] + parts[part + step];
    }
  }
  return parts[0];
}

__device__ inline float4 load4(const float* from, int count, bool vector) {
  if (vector) return *reinterpret_cast<const float4*>(from);
  return make_float4(from[0], count > 1 ? from[1] : 0, count > 2 ? from[2] : 0,
                     count > 3 ? from[3] : 0);
}
__device__ inline void store4(float* to, const float4& value, int count, bool vector) {
  if (vector) {
    *reinterpret_cast<float4*>(to) = value;
    return;
  }
  to[0] = value.x;
  if (count > 1) to[1] = value.y;
  if (count > 2) to[2] = value.z;
  if (count > 3) to[3] = value.w;
}

// As store4, in bf16; vector: to multiples of 8 bytes.
__device__ inline void store4_bf16(uint16_t* to, const float4& value, int count, bool vector) {
  const uint2 bits = make_uint2(round_bf16(value.x, value.y), round_bf16(value.z, value.w));
  if (vector) {
    *reinterpret_cast<uint2*>(to) = bits;
    return;
  }
  to[0] = static_cast<uint16_t>(bits.x);
  if (count > 1) to[1] = static_cast<uint16_t>(bits.x >> 16);
  if (count > 2) to[2] = static_cast<uint16_t>(bits.y);
  if (count > 3) to[3] = static_cast<uint16_t>(bits.y >> 16);
}

__device__ inline float swish(float gate, float up) { return gate * sigmoid(gate) * up; }

// Where a thread's share of the tile's outputs is: four columns of some rows.
struct Share {
  int m;       // of the columns, in the outputs of this tile
  int output;  // of the first column
  int count;   // of columns that there are; 0: nothing
  int begin, step, rows;
};
template <typename T>
__device__ Share share_of(const Task& task, const Place& place) {
  const int thread = threadIdx.x;
  const int all = (task.swiglu ? 1 : 2) * task.box_rows / 4;  // fours of columns
  const int first = all * place.part / task.parts;
  const int fours = all * (place.part + 1) / task.parts - first;
  if (fours == 0) return {};
  const int step = T::kComputing / fours;  // rows
  const int m = (first + thread % fours) * 4, output = place.W_row + m;
  if (thread >= step * fours || output >= task.outputs) return {};
  return {m,
          output,
          min(4, task.outputs - output),
          thread / fours,
          step,
          min(task.rows - place.x_row, task.x_rows)};
}

__device__ inline bool convolved(const Task& task, int output) {
  return task.conv.state != nullptr && output >= task.conv_first &&
         output < task.conv_first + task.conv.D;
}

// The state of four channels, from d on, of the sequence that a row is.
__device__ inline float* conv_state(const CausalConv1dArgs& a, int row, int d) {
  return a.state + (static_cast<int64_t>(a.seqs.slot[row]) * a.D + d) * sm80::FourChannels::kPast;
}

// Whether a tiling is for so few rows that the convolution may be done too.
constexpr int kMostConvolved = 16;
template <typename T>
constexpr bool kConvolves = T::kRows <= kMostConvolved;

// What the convolution reads beside its input is on its way to the L2 cache while the products are
// made.
template <typename T>
__device__ void prefetch_conv(const Task& task, const Place& place) {
  if (task.conv.state == nullptr) return;
  const Share share = share_of<T>(task, place);
  if (share.count == 0 || !convolved(task, share.output)) return;
  const int d = share.output - task.conv_first;
  sm80::prefetch_to_l2(task.conv.w + int64_t{d} * sm80::FourChannels::kWidth);
  for (int row = share.begin; row < share.rows; row += share.step) {
    sm80::prefetch_to_l2(conv_state(task.conv, place.x_row + row, d));
  }
}

// Rows whose reads a thread has on their way at once: as many as there are registers for.
template <typename T>
constexpr int kReads = T::kWide          ? 8
                       : T::kBlocks == 3 ? 2
                                         : 4;
template <typename T, int kParts>
constexpr int kAtOnce = std::max(1, kReads<T> / kParts);

// Instead of finish, of columns that go through the convolution.
template <typename T, int kParts>
__device__ void convolve(const Task& task, const Place& place, const Share& share,
                         const typename Shared<T>::Sums& sums, int in_tile, const float4& bias) {
  using sm80::FourChannels;
  constexpr int kPast = FourChannels::kPast;
  const int d = share.output - task.conv_first;
  FourChannels channels;
  channels.load_weights(task.conv, d);
  for (int row = share.begin; row < share.rows; row += share.step) {
    float* state = conv_state(task.conv, place.x_row + row, d);
    float4 past[kPast];
#pragma unroll
    for (int i = 0; i < kPast; ++i) past[i] = sm80::load4<true>(state + 4 * i, 4);
    const float4 x = sum_of_parts<kParts>(&sums[row][in_tile], 0) + bias;
    channels.take_past(past);
    sm80::put_four(task.conv, place.x_row + row, d, channels.advance(x, task.conv.silu));
    channels.give_past(past);
#pragma unroll
    for (int i = 0; i < kPast; ++i) sm80::store4<true>(state + 4 * i, past[i], 4);
  }
}

// This block's share of the tile's outputs. All computing threads. A thread reads several of its
// rows before it writes one, as the residual may stand where they go.
template <typename T, int kParts>
__device__ void finish(const Task& task, const Place& place, const typename Shared<T>::Sums& sums) {
  const Share share = share_of<T>(task, place);
  if (share.count == 0) return;
  const int m = share.m, output = share.output, count = share.count, step = share.step;
  const int in_tile = m < task.box_rows ? m : m - task.box_rows + task.second;
  const int64_t start = static_cast<int64_t>(place.x_row) * task.outputs + output;
  float4 bias = make_float4(0, 0, 0, 0), up_bias = bias;
  if (task.bias != nullptr) {
    bias = load4(task.bias + output, count, task.vector);
    if (task.swiglu) up_bias = load4(task.bias + output + task.box_offset, count, task.vector);
  }
  if constexpr (kConvolves<T>) {
    if (convolved(task, output)) {
      return convolve<T, kParts>(task, place, share, sums, in_tile, bias);
    }
  }
  constexpr int kRows = kAtOnce<T, kParts>;
  for (int begin = share.begin; begin < share.rows; begin += kRows * step) {
    float4 y[kRows], up[kRows], residual[kRows];
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const int row = begin + j * step;
      if (row >= share.rows) break;
      if (task.residual != nullptr) {
        const float* from = task.residual + start + static_cast<int64_t>(row) * task.outputs;
        residual[j] = load4(from, count, task.vector);
      }
      y[j] = sum_of_parts<kParts>(&sums[row][in_tile], place.first_rank);
      if (task.swiglu) up[j] = sum_of_parts<kParts>(&sums[row][task.second + m], place.first_rank);
    }
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const int row = begin + j * step;
      if (row >= share.rows) break;
      float4 out = y[j] + bias;
      if (task.swiglu) {
        const float4 u = up[j] + up_bias;
        out =
            make_float4(swish(out.x, u.x), swish(out.y, u.y), swish(out.z, u.z), swish(out.w, u.w));
      }
      if (task.soft_cap > 0) {
        out = make_float4(soft_cap(out.x, task.soft_cap), soft_cap(out.y, task.soft_cap),
                          soft_cap(out.z, task.soft_cap), soft_cap(out.w, task.soft_cap));
      }
      if (task.residual != nullptr) out = out + residual[j];
      const int64_t at = start + static_cast<int64_t>(row) * task.outputs;
      if (task.y_bf16 != nullptr) {
        store4_bf16(task.y_bf16 + at, out, count, task.vector);
      } else {
        store4(task.y + at, out, count, task.vector);
      }
    }
  }
}

template <typename T>
__device__ void finish(const Task& task, const Place& place, const typename Shared<T>::Sums& sums) {
  if (task.parts == 1) return finish<T, 1>(task, place, sums);
  if (T::kWide || task.parts == 2) return finish<T, 2>(task, place, sums);
  if constexpr (!T::kWide) {  // a power of two, at most 8
    if (task.parts == 4) return finish<T, 4>(task, place, sums);
    finish<T, 8>(task, place, sums);
  }
}

}  // namespace recurve::cuda::sm90
