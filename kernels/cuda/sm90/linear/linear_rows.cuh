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

// Scales of a warp's 16 rows, for so many boxes of K: a part. A warp has two parts in memory, of
// which one is on its way. A row begins at the 16 bytes that have its first scale.
constexpr int kScaledBoxes = 32;
template <typename T>
constexpr int kScaleRowBytes = kScaledBoxes * sizeof(typename T::Weights::Scale) + 16;
template <typename T>
constexpr int scale_bytes(int boxes) {
  return (boxes > kScaledBoxes ? 2 : 1) * 16 * kScaleRowBytes<T>;
}

// The scales of a warp. No kernel writes them, so that they come before rows of x may be read.
template <typename T>
class WarpScales {
  using Scale = typename T::Weights::Scale;

 public:
  __device__ WarpScales(const Shared<T>& shared, const LinearParams& params,
                        const BlockCoord& block, int) {
    const auto warp = static_cast<int>(threadIdx.x / kWarpSize);
    if (warp >= warps_with_rows(params)) return;
    boxes_ = block.boxes;
    const int lane = threadIdx.x % kWarpSize;
    const auto begin_of = [&](int row) {  // in bytes
      const int of_tile = warp * 16 + row;
      const int of_W = block.W_row + of_tile +
                       (of_tile < params.box_rows ? 0 : params.box_offset - params.box_rows);
      // What is behind the matrix is multiplied, and not used.
      const int64_t first = static_cast<int64_t>(min(of_W, params.W_rows - 1)) * params.boxes;
      return (first + block.first_box) * static_cast<int64_t>(sizeof(Scale));
    };
    const uint32_t memory = shared_address(shared.W_scales + warp * params.scale_bytes);
    // Two lanes bring a row.
    const int64_t begin = begin_of(lane / 2), rest = begin & 15;
    from_ = static_cast<const std::byte*>(params.W_scales) + (begin - rest);
    left_ = static_cast<int64_t>(params.W_rows) * params.boxes * static_cast<int>(sizeof(Scale)) -
            (begin - rest);
    wanted_ = static_cast<int>(rest) + boxes_ * static_cast<int>(sizeof(Scale));
    to_ = memory + lane / 2 * kScaleRowBytes<T>;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane / 4 + 8 * r;
      at_[r] = memory + row * kScaleRowBytes<T> + static_cast<uint32_t>(begin_of(row) & 15);
    }
    bring(0);
    bring(1);
  }

  // Makes a part ready and returns whether its scales are direct: where none is large.
  __device__ bool take(int part) const {
    sm80::wait_for_all_but<1>();
    bool large = false;
    each_piece(part, [&](uint32_t at, int) {
      const uint4 words = load_u128(at);
      large |= T::Weights::any_is_large(words.x, words.y, words.z, words.w);
    });
    const bool direct = !__any_sync(0xffffffffu, large);
    if (direct) {
      each_piece(part, [&](uint32_t at, int) {
        uint4 words = load_u128(at);
        words = make_uint4(T::Weights::direct(words.x), T::Weights::direct(words.y),
                           T::Weights::direct(words.z), T::Weights::direct(words.w));
        store_u128(at, words);
      });
    }
    __syncwarp();  // all lanes have what others brought
    return direct;
  }
  // Asks for the part after the next, in place of one that all lanes have read.
  __device__ void release(int part) const {
    __syncwarp();
    bring(part + 2);
  }
  // Where a lane finds the scales of its two rows.
  __device__ uint32_t at(int part, int r) const { return at_[r] + part % 2 * kPartBytes; }

 private:
  static constexpr int kPartBytes = 16 * kScaleRowBytes<T>;
  static constexpr int kPieces = (kScaleRowBytes<T> / 16 + 1) / 2;  // of a lane, of 16 bytes
  const std::byte* from_;
  int64_t left_;
  int boxes_, wanted_;
  uint32_t to_, at_[2];

  // Calls f(address, place) for the lane's pieces of a part.
  template <typename F>
  __device__ void each_piece(int part, F f) const {
    constexpr int kBytes = kScaledBoxes * sizeof(Scale);
    const bool is_there = part * kScaledBoxes < boxes_;
    const int here = is_there ? min(wanted_ - part * kBytes, kScaleRowBytes<T>) : 0;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int place = static_cast<int>(threadIdx.x % 2 + 2 * i) * 16;
      if (place < here) f(to_ + part % 2 * kPartBytes + place, part * kBytes + place);
    }
  }
  __device__ void bring(int part) const {
    each_piece(part, [&](uint32_t at, int place) {
      const int64_t left = left_ - place;
      sm80::copy_16_bytes(at, from_ + place, left < 16 ? static_cast<int>(left) : 16);
    });
    sm80::commit_copies();
  }
};

// What a lane reads of a box.
template <typename T>
struct BoxOfLane {
  static constexpr bool kByFours = T::Weights::kByFours;
  static constexpr int kWords = T::Weights::kRowBytes / 8, kEights = T::kRows / 8;
  uint32_t W[kWords], x[kEights][8];
  uint32_t scales[2];  // of both rows

  // W, x, scales: addresses, those of the lane. of_stage: which box.
  __device__ void load(uint32_t stage, uint32_t W_lane, uint32_t x_stage, uint32_t x_lane,
                       const uint32_t (&scales_at)[2], int of_stage) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (sizeof(typename T::Weights::Scale) == 2) {
        scales[r] = load_u16(scales_at[r] + of_stage * 2);
      } else {
        scales[r] = load_u32(scales_at[r] + of_stage * 4);
      }
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

  template <bool kDirect>
  __device__ void multiply(Accumulator<T>& sums) const {
    using Weights = typename T::Weights;
    using Factors = typename Weights::template Factors<kDirect>;
    const Factors factors[2] = {Factors(scales[0]), Factors(scales[1])};
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

// Adds up so many boxes, whose scales are at these addresses. stage: the one that has the first of
// them, which is moved behind the last. The barriers are the ring's.
template <bool kDirect, typename T>
__device__ void add_scaled_boxes(const Shared<T>& shared, const LinearParams& params, int boxes,
                                 uint32_t W_lane, uint32_t x_lane, uint32_t (&scales)[2],
                                 RingStage& stage, Accumulator<T>& sums) {
  constexpr int kSpan = T::kSpan;
  BoxOfLane<T> next;
  const auto load = [&](int of_stage) {
    next.load(shared_address(shared.W(stage.index)), W_lane, shared_address(shared.x(stage.index)),
              x_lane, scales, of_stage);
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
#pragma unroll
        for (uint32_t& at : scales) at += kSpan * sizeof(typename T::Weights::Scale);
        if (i + kSpan < boxes) wait(&shared.barriers.full[stage.index], stage.parity);
        load(0);  // after the last stage whatever lies there
      }
      now.template multiply<kDirect>(sums);
    }
    __syncwarp();  // all lanes have read
    if (threadIdx.x % kWarpSize == 0) arrive(empty);
  }
  if (i == boxes) return;
#pragma unroll 1
  for (int box = 0; i + box < boxes; ++box) {
    if (box > 0) load(box);
    next.template multiply<kDirect>(sums);
  }
  __syncwarp();
  if (threadIdx.x % kWarpSize == 0) arrive(&shared.barriers.empty[stage.index]);
  stage.next(params.stages);
}

// Adds up a block's boxes.
template <typename T>
__device__ void add_by_warps(const Shared<T>& shared, const LinearParams& params,
                             const BlockCoord& block, const WarpScales<T>& held,
                             Accumulator<T>& sums) {
  sums.clear();
  // This is the same for a whole warp, which the compiler has to see.
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kWarpSize, 0);
  if (warp >= warps_with_rows(params)) return;
  const uint32_t W_lane = BoxOfLane<T>::W_lane(warp), x_lane = BoxOfLane<T>::x_lane();
  RingStage stage;
#pragma unroll 1
  for (int part = 0; part * kScaledBoxes < block.boxes; ++part) {
    const int boxes = min(kScaledBoxes, block.boxes - part * kScaledBoxes);
    const bool direct = held.take(part);
    if (part == 0) wait(&shared.rows, 0);
    uint32_t scales[] = {held.at(part, 0), held.at(part, 1)};
    if (direct) {
      add_scaled_boxes<true>(shared, params, boxes, W_lane, x_lane, scales, stage, sums);
    } else {
      add_scaled_boxes<false>(shared, params, boxes, W_lane, x_lane, scales, stage, sums);
    }
    held.release(part);
  }
}

}  // namespace recurve::cuda::sm90
