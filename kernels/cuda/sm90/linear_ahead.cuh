#pragma once
#include "kernels/cuda/sm80/causal_conv1d.cuh"
#include "kernels/cuda/sm90/capabilities.h"
#include "kernels/cuda/sm90/linear_sums.cuh"

// What each thread of a linear layer ends, and what it reads for that beside the sums.
namespace recurve::cuda::sm90 {

// Where a thread's share of the tile's outputs is: four columns of some rows. Without swiglu two
// threads beside each other have eight.
struct Share {
  int m;       // of the columns, in the outputs of this tile
  int output;  // of the first column
  int count;   // of columns that there are; 0: nothing
  int begin, step, rows;
};
// Of the tile's outputs, the block's columns in fours.
struct Fours {
  int first, count;
};
__device__ inline Fours fours_of(const Task& task, const Place& place) {
  const int all = (task.swiglu ? 1 : 2) * task.box_rows / 4, unit = task.swiglu ? 1 : 2;
  const int first = all / unit * place.part / task.parts * unit;
  return {first, all / unit * (place.part + 1) / task.parts * unit - first};
}
template <typename T>
__device__ Share share_of(const Task& task, const Place& place) {
  const int thread = threadIdx.x;
  const auto [first, fours] = fours_of(task, place);
  if (fours == 0) return {};
  const int step = T::kComputing / fours;  // rows
  const int m = (first + thread % fours) * 4, output = place.W_row + m;
  if (thread >= step * fours || output >= task.outputs) return {};
  return {m, output, min(4, task.outputs - output), thread / fours, step, rows_of(task, place)};
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
template <typename T>
constexpr bool kConvolves = T::kRows <= kMostConvolved;
// And whether a thread has the registers for its states and weights while products are made.
template <typename T>
constexpr bool kHoldsConvolution = kIsForFew<T> && (T::kBlocks * T::kComputing <= 512);

// The convolution's channels and states of a thread's row.
struct Convolution {
  sm80::FourChannels channels;
  float4 past[sm80::FourChannels::kPast];

  __device__ void load_past(const float* state) {
#pragma unroll
    for (int i = 0; i < sm80::FourChannels::kPast; ++i) {
      past[i] = sm80::load4<true>(state + 4 * i, 4);
    }
  }
  // x: what comes to it of a row.
  __device__ void end(const CausalConv1dArgs& a, int row, int d, const float4& x, float* state) {
    channels.take_past(past);
    sm80::put_four(a, row, d, channels.advance(x, a.silu));
    channels.give_past(past);
#pragma unroll
    for (int i = 0; i < sm80::FourChannels::kPast; ++i) {
      sm80::store4<true>(state + 4 * i, past[i], 4);
    }
  }
};

// Of a row of x.
__device__ inline const float* squares_at(const Task& task, int row) {
  return task.squares + static_cast<int64_t>(row) * (task.K / BegunNorm::kSquares);
}

// What the end reads beside the sums: on its way while these are made, where there are few rows.
template <typename T>
struct Ahead {
  static constexpr int kWarps = T::kComputing / kWarpSize;
  static constexpr int kRowsOfWarp = (kFewRows + kWarps - 1) / kWarps;
  Share share;
  float scale;                          // of the tile's row that is this thread's number
  RowSquares<16> squares[kRowsOfWarp];  // of rows of this warp
  float4 bias, up_bias, next_norm;      // of the thread's columns, and
  float4 residual;                      // of its one row
  Convolution conv;

  __device__ bool convolves(const Task& task) const {
    return kConvolves<T> && share.count > 0 && convolved(task, share.output);
  }

  // What no kernel writes.
  __device__ Ahead(const Task& task, const Place& place) : share(share_of<T>(task, place)) {
    bias = up_bias = make_float4(0, 0, 0, 0);
    if (task.bias != nullptr && share.count > 0) {
      bias = load4(task.bias + share.output, share.count, task.vector);
      if (task.swiglu) {
        up_bias = load4(task.bias + share.output + task.box_offset, share.count, task.vector);
      }
    }
    if constexpr (kConvolves<T>) {
      if (convolves(task)) {
        prefetch_conv(task, place);
        const int d = share.output - task.conv_first;
        if (kHoldsConvolution<T>) conv.channels.load_weights(task.conv, d);
      }
    }
    if (kBeginsNorms<T> && share.count > 0 && task.next.x != nullptr) {
      if constexpr (kIsForFew<T>) {
        next_norm = load4(task.next_norm + share.output, 4, true);
      } else {
        sm80::prefetch_to_l2(task.next_norm + share.output);
      }
    }
  }

  // Of many rows the L2 cache has to do.
  __device__ void prefetch_conv(const Task& task, const Place& place) const {
    const int d = share.output - task.conv_first;
    sm80::prefetch_to_l2(task.conv.w + int64_t{d} * sm80::FourChannels::kWidth);
    for (int row = share.begin; row < share.rows; row += share.step) {
      sm80::prefetch_to_l2(conv_state(task.conv, place.x_row + row, d));
    }
  }

  // The rest.
  __device__ void load(const Task& task, const Place& place) {
    const int rows = rows_of(task, place), thread = threadIdx.x;
    if (task.scales != nullptr && thread < rows) scale = task.scales[place.x_row + thread];
    if constexpr (kIsForFew<T>) {
      if (task.squares != nullptr) {
#pragma unroll
        for (int j = 0; j < kRowsOfWarp; ++j) {
          const int row = j * kWarps + thread / kWarpSize;
          if (row < rows) squares[j].load(squares_at(task, place.x_row + row), task.K);
        }
      }
      if (share.count == 0 || share.begin >= share.rows) return;
      if (convolves(task)) {
        const int d = share.output - task.conv_first;
        if (kHoldsConvolution<T>)
          conv.load_past(conv_state(task.conv, place.x_row + share.begin, d));
      } else if (task.residual != nullptr) {
        const int64_t at = static_cast<int64_t>(place.x_row + share.begin) * task.outputs;
        residual = load4(task.residual + at + share.output, share.count, task.vector);
      }
    }
  }

  // Where all threads find the scales of all rows.
  __device__ void put_scales(const Shared<T>& shared, const Task& task) const {
    const int thread = threadIdx.x;
    if (task.scales != nullptr && thread < task.x_rows) shared.scales[thread] = scale;
  }
  // Likewise of few rows whose norm is begun, once the products are made: not to be waited for
  // before.
  __device__ void find_scales(const Shared<T>& shared, const Task& task, const Place& place) const {
    put_scales(shared, task);
    if (task.squares == nullptr) return;
    const int rows = rows_of(task, place), thread = threadIdx.x;
#pragma unroll
    for (int j = 0; j < kRowsOfWarp; ++j) {
      const int row = j * kWarps + thread / kWarpSize;
      if (row >= rows) break;
      const float* from = squares_at(task, place.x_row + row);
      const float found = squares[j].scale(from, task.K, task.norm_eps);
      if (thread % kWarpSize == 0) shared.scales[row] = found;
    }
  }
};

// The scales of a norm that is begun, of more than few rows. Each is found by one block as it
// begins, and noted where all read it as they end: zero is none yet. By the warp that loads.
__device__ inline void note_scales(const Task& task) {
  for (int row = blockIdx.x; row < task.rows; row += static_cast<int>(gridDim.x)) {
    RowSquares<16> squares;
    squares.load(squares_at(task, row), task.K);
    float scale = squares.scale(squares_at(task, row), task.K, task.norm_eps);
    if (scale == 0) scale = -0.0f;
    if (threadIdx.x % kWarpSize != 0) continue;
    asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(task.found + row), "f"(scale)
                 : "memory");
  }
}
template <typename T>
__device__ void collect_scales(const Task& task, const Place& place, const Shared<T>& shared) {
  for (int row = threadIdx.x % kWarpSize; row < rows_of(task, place); row += kWarpSize) {
    uint32_t scale = 0;
    wait_until([&] {
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];"
                   : "=r"(scale)
                   : "l"(task.found + place.x_row + row)
                   : "memory");
      return scale != 0;
    });
    shared.scales[row] = __uint_as_float(scale);
  }
}

}  // namespace recurve::cuda::sm90
