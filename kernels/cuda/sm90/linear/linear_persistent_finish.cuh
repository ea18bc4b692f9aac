#pragma once
#include "kernels/cuda/sm90/linear/linear_accumulator.cuh"
#include "kernels/cuda/sm90/linear/linear_sums.cuh"

// The end of a tile of a persistent block, which a warpgroup goes through while the products of its
// next tile are made. It takes its sums through a small part of shared memory, some columns at a
// time: there they are turned from the order of the products into rows, of which a warp writes
// whole lines. A warp runs with few others to hide behind, so what counts is how many
// instructions there are: what is out of the ordinary is left to linear_kernel.cuh.
namespace recurve::cuda::sm90 {

// What is done with the sums, as in LinearArgs. Rows of y and bias begin at multiples of 16 bytes.
struct Outputs {
  int rows, count;  // of y
  bool swiglu;
  bool adds;            // to what is in y: the residual
  const float* scales;  // of rows of x, or null
  const float* bias;
  float* y;
  uint16_t* y_bf16;
};

// The L2 cache adds, each output once. (It makes zeros of numbers below 2^-126.)
__device__ inline void add4(float* to, const float4& value) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(value.x),
               "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
}

// The scales of a thread's two rows in 64 rows of a warpgroup, of which this is the first; 1 where
// there are none.
struct RowScales {
  float scales[2];
  __device__ RowScales(const Outputs& o, int first_row) {
    const int warp = threadIdx.x % kGroupThreads / kWarpSize, lane = threadIdx.x % kWarpSize;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + warp * 16 + half * 8 + lane / 4;
      scales[half] = o.scales != nullptr && row < o.rows ? o.scales[row] : 1;
    }
  }
  template <typename T>
  __device__ void scale(const Accumulator<T>& from, Accumulator<T>& to) const {
#pragma unroll
    for (int i = 0; i < T::kTileM / 2; ++i) {
      to.parts[0][i] = __fmul_rn(from.parts[0][i], scales[i / 2 % 2]);
    }
  }
  // Scales the sum of two pieces of K.
  template <typename T>
  __device__ void scale_sum(const Accumulator<T>& a, const Accumulator<T>& b,
                            Accumulator<T>& to) const {
#pragma unroll
    for (int i = 0; i < T::kTileM / 2; ++i) {
      to.parts[0][i] = __fmul_rn(a.parts[0][i] + b.parts[0][i], scales[i / 2 % 2]);
    }
  }
};

// A warpgroup's part of shared memory: 64 rows of some columns, where no store meets a bank twice.
using Staged = float[kGroupM][kStagedColumns + 8];

// The end of one tile, a chunk of columns after the other.
template <typename T>
struct TileEnd {
  static constexpr int kChunks = ceil_div(T::kTileM, kStagedColumns), kEights = kStagedColumns / 8;
  const Outputs& o;
  Staged& staged;
  const int group;
  int first_row = 0, first_output = 0;  // of the warpgroup's part of the tile
  int chunk = kChunks;                  // the next: there are none at first

  __device__ void begin(int row, int output) {
    first_row = row;
    first_output = output;
    chunk = 0;
  }
  __device__ bool done() const { return chunk == kChunks; }

  __device__ void write_next(const Accumulator<T>& sums) {
    if (o.swiglu) {
      if constexpr (T::kTileM % kStagedColumns == 0) write<true>(sums.parts[0]);
    } else {
      write<false>(sums.parts[0]);
    }
    ++chunk;
  }

 private:
  // Where the j-th eight of the columns of a chunk is in the tile: gates come before what they
  // gate.
  __device__ static constexpr int eight_of(bool swiglu, int chunk, int j) {
    constexpr int kGates = kEights / 2;
    if (!swiglu) return chunk * kEights + j;
    return j < kGates ? chunk * kGates + j : T::kTileM / 16 + (chunk - 1) * kGates + j;
  }
  template <bool kSwiglu>
  __device__ void write(const float (&sums)[T::kTileM / 2]) const {
    constexpr int kColumns = kSwiglu ? kStagedColumns / 2 : kStagedColumns, kFours = kColumns / 4;
    const int thread = threadIdx.x % kGroupThreads, m = thread % kFours * 4, row = thread / kFours;
    const int in_tile = chunk * kColumns + m, output = first_output + in_tile;
    const bool there = in_tile < (kSwiglu ? T::kTileM / 2 : T::kTileM) && output < o.count;
    float4 bias = {}, up_bias = {};
    if (o.bias != nullptr && there) {
      bias = __ldg(reinterpret_cast<const float4*>(o.bias + output));
      if (kSwiglu) up_bias = __ldg(reinterpret_cast<const float4*>(o.bias + o.count + output));
    }
    sync();
    [&]<int... kChunk>(std::integer_sequence<int, kChunk...>) {
      ((chunk == kChunk ? put<kSwiglu, kChunk>(sums) : void()), ...);
    }(std::make_integer_sequence<int, kChunks>());
    sync();
    const int rows = there ? o.rows - first_row - row : 0;
    const int64_t at = static_cast<int64_t>(first_row + row) * o.count + output;
    const auto each_row = [&](auto store) {
      constexpr int kStep = kGroupThreads / kFours;
#pragma unroll
      for (int i = 0; i < kGroupM / kStep; ++i) {
        const float* from = &staged[row + i * kStep][m];
        float4 y = *reinterpret_cast<const float4*>(from) + bias;
        if (kSwiglu) y = swish(y, *reinterpret_cast<const float4*>(from + kColumns) + up_bias);
        if (i * kStep < rows) store(at + static_cast<int64_t>(i * kStep) * o.count, y);
      }
    };
    if (o.y_bf16 != nullptr) {
      each_row([&](int64_t to, const float4& y) { store4_bf16(o.y_bf16 + to, y, 4, true); });
    } else if (o.adds) {
      each_row([&](int64_t to, const float4& y) { add4(o.y + to, y); });
    } else {
      each_row([&](int64_t to, const float4& y) { store4(o.y + to, y, 4, true); });
    }
  }

  // The warpgroup.
  __device__ void sync() const {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(kGroupThreads) : "memory");
  }

  // The layout of sums: PTX ISA, wgmma.mma_async.m64nNk16.
  template <bool kSwiglu, int kChunk>
  __device__ void put(const float (&sums)[T::kTileM / 2]) const {
    const int warp = threadIdx.x % kGroupThreads / kWarpSize, lane = threadIdx.x % kWarpSize;
    const int row = warp * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      constexpr int kMost = T::kTileM / 8;
      const int eight = eight_of(kSwiglu, kChunk, j);
      if (eight >= kMost) break;
      const float* four = &sums[4 * eight];
      *reinterpret_cast<float2*>(&staged[row][8 * j + column]) = make_float2(four[0], four[1]);
      *reinterpret_cast<float2*>(&staged[row + 8][8 * j + column]) = make_float2(four[2], four[3]);
    }
  }
};

}  // namespace recurve::cuda::sm90
