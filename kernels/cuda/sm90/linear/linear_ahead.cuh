#pragma once
#include "kernels/cuda/sm80/channels/causal_conv1d.cuh"
#include "kernels/cuda/sm90/capabilities.h"
#include "kernels/cuda/sm90/linear/linear_sums.cuh"

// What each thread of a linear layer ends, and what it reads for that in addition to the sums.
namespace recurve::cuda::sm90 {

// Where a thread's share of the tile's outputs is: four columns of some rows. Without swiglu two
// adjacent threads have eight.
struct OutputSlice {
  int m;       // of the columns, in the outputs of this tile
  int output;  // of the first column
  int count;   // of columns that there are; 0: nothing
  int begin, step, rows;
};
// The block's columns of the tile's outputs, counted in fours.
struct Fours {
  int first, count;
};
__device__ inline Fours fours_of(const LinearParams& params, const BlockCoord& block) {
  const int all = (params.swiglu ? 1 : 2) * params.box_rows / 4, unit = params.swiglu ? 1 : 2;
  const int first = all / unit * block.part / params.parts * unit;
  return {first, all / unit * (block.part + 1) / params.parts * unit - first};
}
template <typename T>
__device__ OutputSlice output_slice(const LinearParams& params, const BlockCoord& block) {
  const int thread = threadIdx.x;
  const auto [first, fours] = fours_of(params, block);
  if (fours == 0) return {};
  const int step = T::kComputing / fours;  // rows
  const int m = (first + thread % fours) * 4, output = block.W_row + m;
  if (thread >= step * fours || output >= params.outputs) return {};
  return {m, output, min(4, params.outputs - output), thread / fours, step, rows_of(params, block)};
}

__device__ inline bool convolved(const LinearParams& params, int output) {
  return params.conv.state != nullptr && output >= params.conv_first &&
         output < params.conv_first + params.conv.D;
}

// The state of four channels, from d on, of the sequence that a row is.
__device__ inline float* conv_state(const CausalConv1dArgs& a, int row, int d) {
  return a.state + (static_cast<int64_t>(a.seqs.slot[row]) * a.D + d) * sm80::FourChannels::kPast;
}

// Whether a tiling is for so few rows that the convolution may be done too.
template <typename T>
constexpr bool kConvolves = T::kRows <= kMostConvolved;
// Whether a thread then has the registers for its states and weights while products are made.
template <typename T>
constexpr bool kHoldsConvolution =
    kIsForFew<T> && !T::Weights::kHeld && (T::kBlocks * T::kComputing <= 512);

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

// The sums of squares of a row of x.
__device__ inline const float* squares_at(const LinearParams& params, int row) {
  return params.squares + static_cast<int64_t>(row) * (params.K / DeferredRmsNorm::kSquares);
}

// What the end reads in addition to the sums: on its way while these are made, where there are few
// rows.
template <typename T>
struct Ahead {
  static constexpr int kWarps = T::kComputing / kWarpSize;
  static constexpr int kRowsOfWarp = (kFewRows + kWarps - 1) / kWarps;
  OutputSlice slice;
  float scale;                          // of the tile's row that is this thread's number
  RowSquares<16> squares[kRowsOfWarp];  // of rows of this warp
  float4 bias, up_bias, next_norm;      // of the thread's columns, and
  float4 residual;                      // of its one row
  Convolution conv;

  __device__ bool convolves(const LinearParams& params) const {
    return kConvolves<T> && slice.count > 0 && convolved(params, slice.output);
  }

  // What no kernel writes.
  __device__ Ahead(const LinearParams& params, const BlockCoord& block)
      : slice(output_slice<T>(params, block)) {
    bias = up_bias = make_float4(0, 0, 0, 0);
    if (params.bias != nullptr && slice.count > 0) {
      bias = load4(params.bias + slice.output, slice.count, params.vector);
      if (params.swiglu) {
        up_bias = load4(params.bias + slice.output + params.box_offset, slice.count, params.vector);
      }
    }
    if constexpr (kConvolves<T>) {
      if (convolves(params)) {
        prefetch_conv(params, block);
        const int d = slice.output - params.conv_first;
        if (kHoldsConvolution<T>) conv.channels.load_weights(params.conv, d);
      }
    }
    if (kDefersNorms<T> && slice.count > 0 && params.next.x != nullptr) {
      if constexpr (kIsForFew<T>) {
        next_norm = load4(params.next_norm + slice.output, 4, true);
      } else {
        sm80::prefetch_to_l2(params.next_norm + slice.output);
      }
    }
  }

  // Brings what the convolution reads to the L2 cache, which has to do where rows are many.
  __device__ void prefetch_conv(const LinearParams& params, const BlockCoord& block) const {
    const int d = slice.output - params.conv_first;
    sm80::prefetch_to_l2(params.conv.w + int64_t{d} * sm80::FourChannels::kWidth);
    for (int row = slice.begin; row < slice.rows; row += slice.step) {
      sm80::prefetch_to_l2(conv_state(params.conv, block.x_row + row, d));
    }
  }

  // The rest.
  __device__ void load(const LinearParams& params, const BlockCoord& block) {
    const int rows = rows_of(params, block), thread = threadIdx.x;
    if (params.scales != nullptr && thread < rows) scale = params.scales[block.x_row + thread];
    if constexpr (kIsForFew<T>) {
      if (params.squares != nullptr) {
#pragma unroll
        for (int j = 0; j < kRowsOfWarp; ++j) {
          const int row = j * kWarps + thread / kWarpSize;
          if (row < rows) squares[j].load(squares_at(params, block.x_row + row), params.K);
        }
      }
      if (slice.count == 0 || slice.begin >= slice.rows) return;
      if (convolves(params)) {
        const int d = slice.output - params.conv_first;
        if (kHoldsConvolution<T>)
          conv.load_past(conv_state(params.conv, block.x_row + slice.begin, d));
      } else if (params.residual != nullptr) {
        const int64_t at = static_cast<int64_t>(block.x_row + slice.begin) * params.outputs;
        residual = load4(params.residual + at + slice.output, slice.count, params.vector);
      }
    }
  }

  // Where all threads find the scales of all rows.
  __device__ void put_scales(const Shared<T>& shared, const LinearParams& params) const {
    const int thread = threadIdx.x;
    if (params.scales != nullptr && thread < params.x_rows) shared.scales[thread] = scale;
  }
  // Does what put_scales() does, and finds the scales of few rows whose norm was deferred. It is
  // called once the products are made, as no thread should wait for these before.
  __device__ void find_scales(const Shared<T>& shared, const LinearParams& params,
                              const BlockCoord& block) const {
    put_scales(shared, params);
    if (params.squares == nullptr) return;
    const int rows = rows_of(params, block), thread = threadIdx.x;
#pragma unroll
    for (int j = 0; j < kRowsOfWarp; ++j) {
      const int row = j * kWarps + thread / kWarpSize;
      if (row >= rows) break;
      const float* from = squares_at(params, block.x_row + row);
      const float found = squares[j].scale(from, params.K, params.norm_eps);
      if (thread % kWarpSize == 0) shared.scales[row] = found;
    }
  }
};

// The scales of a deferred norm of more than few rows. Each is found by one block as it begins, and
// noted where all read it as they end: zero means that it is not there yet. By the warp that loads.
__device__ inline void note_scales(const LinearParams& params) {
  for (int row = blockIdx.x; row < params.rows; row += static_cast<int>(gridDim.x)) {
    RowSquares<16> squares;
    squares.load(squares_at(params, row), params.K);
    float scale = squares.scale(squares_at(params, row), params.K, params.norm_eps);
    if (scale == 0) scale = -0.0f;
    if (threadIdx.x % kWarpSize != 0) continue;
    asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(params.found + row), "f"(scale)
                 : "memory");
  }
}
template <typename T>
__device__ void collect_scales(const LinearParams& params, const BlockCoord& block,
                               const Shared<T>& shared) {
  for (int row = threadIdx.x % kWarpSize; row < rows_of(params, block); row += kWarpSize) {
    uint32_t scale = 0;
    wait_until([&] {
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];"
                   : "=r"(scale)
                   : "l"(params.found + block.x_row + row)
                   : "memory");
      return scale != 0;
    });
    shared.scales[row] = __uint_as_float(scale);
  }
}

}  // namespace recurve::cuda::sm90
