#pragma once
#include <algorithm>

#include "kernels/cuda/sm80/tile.cuh"
#include "kernels/cuda/sm90/linear/linear_accumulator.cuh"
#include "kernels/cuda/sm90/linear/linear_held.cuh"

// Packed weights of few rows of x: each warp unpacks and multiplies 16 rows of W by itself. It
// reads a box while it multiplies the one before, and has the scales of its rows in shared memory,
// as those of a box would come too late.
//
// A lane gets its part of a box by ldmatrix, to which 16 bytes of a row are eight values of 16
// bits. In int4 these are words whose values are where mma.sync wants them. In int8 a lane gets
// columns 4 (lane % 4) to that + 3 of each step of 16, and reads the same columns of x: a product
// adds up its 16 columns at once, so their order does not matter.
namespace recurve::cuda::sm90 {

// How many warps have some of the tile's rows of W, 16 each.
__host__ __device__ inline int warps_with_rows(const LinearParams& params) {
  return (2 * params.box_rows + 15) / 16;
}

// The scales of a warp's rows, for so many boxes at once. Those of a box take a few bytes more than
// there are, so that lanes that have a box each meet few banks twice.
constexpr int kScaledBoxes = 64;
template <typename T>
constexpr int kScaleStride =
    16 * sizeof(typename T::Weights::Scale) + 2 * sizeof(typename T::Weights::Scale);
template <typename T>
constexpr int scale_bytes(int boxes) {
  return ((std::min(boxes, kScaledBoxes) + 1) * kScaleStride<T> + 15) / 16 * 16;
}

// Brings the scales of the boxes from `first` on that a block has, for a warp. No kernel writes
// them.
template <typename T>
__device__ void bring_scales(std::byte* to, const LinearParams& params, const BlockCoord& block,
                             int warp, int first) {
  using Scale = typename T::Weights::Scale;
  constexpr int kEach = kScaledBoxes / kWarpSize;  // boxes of a lane
  const int lane = threadIdx.x % kWarpSize;
  Scale scales[16][kEach];
#pragma unroll
  for (int row = 0; row < 16; ++row) {
    const int of_tile = warp * 16 + row;
    const int of_W = block.W_row + of_tile +
                     (of_tile < params.box_rows ? 0 : params.box_offset - params.box_rows);
    // What is behind the matrix is multiplied, and not used.
    const Scale* from = static_cast<const Scale*>(params.W_scales) +
                        static_cast<int64_t>(min(of_W, params.W_rows - 1)) * params.boxes +
                        block.first_box;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int box = first + i * kWarpSize + lane;
      scales[row][i] = box < block.boxes ? __ldg(from + box) : Scale{0};
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int box = i * kWarpSize + lane;
    if (first + box >= block.boxes) break;
#pragma unroll
    for (int row = 0; row < 8; ++row) {
      const Scale one = scales[row][i], other = scales[row + 8][i];
      std::byte* place = to + box * kScaleStride<T> + row * 2 * sizeof(Scale);
      if constexpr (sizeof(Scale) == 2) {
        *reinterpret_cast<uint32_t*>(place) = one | static_cast<uint32_t>(other) << 16;
      } else {
        *reinterpret_cast<uint2*>(place) = make_uint2(one, other);
      }
    }
  }
  __syncwarp();
}

// What a lane reads of a box.
template <typename T>
struct BoxOfLane {
  static constexpr bool kByFours = T::Weights::kByFours;
  static constexpr int kWords = T::Weights::kRowBytes / 8, kEights = T::kRows / 8;
  uint32_t W[kWords], x[kEights][8];
  uint2 scales;  // of both rows; in int8 both in x

  // W, x, scales: addresses, those of the lane. of_stage: which box.
  __device__ void load(uint32_t stage, uint32_t W_lane, uint32_t x_stage, uint32_t x_lane,
                       uint32_t scales_at, int of_stage) {
    if constexpr (sizeof(typename T::Weights::Scale) == 2) {
      scales.x = load_u32(scales_at + of_stage * kScaleStride<T>);
    } else {
      scales = load_u64(scales_at + of_stage * kScaleStride<T>);
    }
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      sm80::load_matrices(reinterpret_cast<uint32_t(&)[4]>(W[4 * i]),
                          stage + (W_lane ^ (of_stage * (kWords / 4) + i) * 32));
    }
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
      const uint32_t from = x_stage + of_stage * T::kXBoxBytes + eight * 8 * kBoxBytes;
      if constexpr (kByFours) {
#pragma unroll
        for (int step = 0; step < kBoxK / 16; ++step) {
          const uint2 four = load_u64(from + (x_lane ^ step * 32));
          x[eight][2 * step] = four.x;
          x[eight][2 * step + 1] = four.y;
        }
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          sm80::load_matrices(reinterpret_cast<uint32_t(&)[4]>(x[eight][4 * half]),
                              from + (x_lane ^ half * kBoxBytes / 2));
        }
      }
    }
  }
  __device__ auto of_other_row() const {
    if constexpr (kByFours) {
      return typename T::Weights::Factors(scales.x, 0x3232);
    } else {
      return typename T::Weights::Factors(scales.y);
    }
  }
  // Where a lane reads in a stage, and in a box of x: the swizzle goes by the rows' numbers.
  __device__ static uint32_t W_lane(int warp) {
    const uint32_t lane = threadIdx.x % kWarpSize;
    return (warp * 16 + lane % 16) * 128 + ((lane / 16 ^ lane % 8) << 4);
  }
  __device__ static uint32_t x_lane() {
    const uint32_t lane = threadIdx.x % kWarpSize;
    if constexpr (kByFours) {
      const uint32_t row = lane / 4, four = lane % 4;
      return row * kBoxBytes + ((four / 2 ^ row) << 4) + four % 2 * 8;
    }
    const uint32_t row = lane % 8;
    return row * kBoxBytes + ((lane / 8 ^ row) << 4);
  }

  __device__ void multiply(Accumulator<T>& sums) const {
    using Weights = typename T::Weights;
    using Factors = typename Weights::Factors;
    const Factors factors[2] = {Factors(scales.x), of_other_row()};
#pragma unroll
    for (int step = 0; step < kBoxK / 16; ++step) {
      uint32_t a[4];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if constexpr (kByFours) {
          const uint32_t four = Weights::flipped(W[2 * step + r]);
          a[r] = Weights::two_values(four, 0x4140, factors[r]);
          a[2 + r] = Weights::two_values(four, 0x4342, factors[r]);
        } else {
          a[r] = Weights::two_values(W[r], step, factors[r]);
          a[2 + r] = Weights::two_values(W[2 + r], step, factors[r]);
        }
      }
#pragma unroll
      for (int eight = 0; eight < kEights; ++eight) {
        sm80::multiply_bf16(reinterpret_cast<float(&)[4]>(sums.parts[0][4 * eight]), a,
                            x[eight][2 * step], x[eight][2 * step + 1]);
      }
    }
  }
};

// Adds up a block's boxes. The barriers are the ring's.
template <typename T>
__device__ void add_by_warps(const Shared<T>& shared, const LinearParams& params,
                             const BlockCoord& block, Accumulator<T>& sums) {
  constexpr int kSpan = T::kSpan;
  sums.clear();
  // This is the same for a whole warp, which the compiler has to see.
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kWarpSize, 0);
  if (warp >= warps_with_rows(params)) return;
  std::byte* of_warp = shared.W_scales + warp * params.scale_bytes;
  const uint32_t W_lane = BoxOfLane<T>::W_lane(warp), x_lane = BoxOfLane<T>::x_lane();
  const uint32_t scales_begin = shared_address(of_warp) + threadIdx.x % kWarpSize / 4 * 2 *
                                                              sizeof(typename T::Weights::Scale);
  RingStage stage;
  for (int first = 0; first < block.boxes; first += kScaledBoxes) {
    if (first > 0) {
      __syncwarp();
      bring_scales<T>(of_warp, params, block, warp, first);
    }
    const int boxes = min(kScaledBoxes, block.boxes - first);
    uint32_t scales = scales_begin;
    BoxOfLane<T> next;
    const auto load = [&](int of_stage) {
      next.load(shared_address(shared.W(stage.index)), W_lane,
                shared_address(shared.x(stage.index)), x_lane, scales, of_stage);
    };
    wait(&shared.barriers.full[stage.index], stage.parity);
    load(0);
    int i = 0;
    for (; i + kSpan <= boxes; i += kSpan) {
      Barrier* empty = &shared.barriers.empty[stage.index];
#pragma unroll
      for (int box = 0; box < kSpan; ++box) {
        const BoxOfLane<T> now = next;
        if (box + 1 < kSpan) {
          load(box + 1);
        } else {
          stage.next(params.stages);
          scales += kSpan * kScaleStride<T>;
          if (i + kSpan < boxes) wait(&shared.barriers.full[stage.index], stage.parity);
          load(0);  // after the last stage whatever lies there
        }
        now.multiply(sums);
      }
      __syncwarp();  // all lanes have read
      if (threadIdx.x % kWarpSize == 0) arrive(empty);
    }
    if (i == boxes) continue;
#pragma unroll 1
    for (int box = 0; i + box < boxes; ++box) {
      if (box > 0) load(box);
      next.multiply(sums);
    }
    __syncwarp();
    if (threadIdx.x % kWarpSize == 0) arrive(&shared.barriers.empty[stage.index]);
    stage.next(params.stages);
  }
}

}  // namespace recurve::cuda::sm90
