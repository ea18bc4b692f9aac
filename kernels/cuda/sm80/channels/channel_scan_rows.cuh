#pragma once
#include <cstdint>

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/channels/channel_scan.h"
#include "kernels/cuda/sm80/copies.cuh"
#include "kernels/ops/ragged.h"

// Recurrences h <- a h + x of independent channels, row after row, so any split of a sequence gives
// the same bits. A step has a thread a channel. In prompts a block has some channels of a sequence
// and goes through all its rows in tiles: while one warp computes the states of a tile, the other
// warps compute the coefficients of the next tile, which do not depend on the state, and the inputs
// of the tiles after it are being copied to shared memory.
//
// An op is a ChannelScan that has
//   kGated                     whether y is h times a third coefficient, or h itself
//   bool fresh(row)            whether the row is the first of its session, so the state before it
//                              counts as 0
//   Weights weights(channel)   what the coefficients of a channel depend on besides the inputs
//   Coefficients of(inputs, weights, first)   first: of a fresh row
namespace recurve::cuda::sm80 {

template <int kCount>
struct ChannelScan {
  static constexpr int kInputs = kCount;
  Ragged seqs;
  int D;
  float* state;                // (slots, D)
  float* y;                    // (rows, D)
  const float* input[kCount];  // (rows, D) each
  int stride[kCount];          // floats from a row of each to the next
};

struct Coefficients {
  float a, x, gate;
};

__device__ inline float advance(float a, float h, float x) { return __fmaf_rn(a, h, x); }
template <bool kGated>
__device__ float output_of(float gate, float h) {
  return kGated ? __fmul_rn(gate, h) : h;
}

template <bool kGated>
constexpr int kScanCoefficients = kGated ? 3 : 2;

constexpr int kScanFour = 4;  // channels of a row that a thread computes coefficients of

// A tile is (rows, channels) in each array. A thread has the same four channels of a row of the
// tile in all of them.
template <typename Op, int kWarps>
struct ScanMemory {
  static constexpr int kThreads = kWarps * kWarpSize;
  float4 inputs[kScanStages][Op::kInputs][kThreads];
  float4 coefficients[kScanBuffers][kScanCoefficients<Op::kGated>][kThreads];
};
template <int kWarps, int kChannels>
constexpr int kScanRows = kWarps * kWarpSize * kScanFour / kChannels;  // of a tile

__device__ inline int after(int index, int count) { return index + 1 == count ? 0 : index + 1; }

template <int kBytes>
__device__ void copy_async(float* to, const float* from) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from)
                 : "memory");
  }
}

// The rows and channels of a block.
struct ScanBlock {
  int64_t begin;  // the first row of the sequence
  int rows;       // of the sequence
  int tiles;
  int first_channel;
};

// Copies the inputs that a thread reads itself, one group of copies a tile, so no other thread
// waits for them. fours: the rows of inputs begin and end at multiples of 16 bytes.
template <typename Op, int kWarps, int kChannels>
class InputCopier {
 public:
  using Memory = ScanMemory<Op, kWarps>;

  __device__ InputCopier(const Op& op, const ScanBlock& block, Memory& memory, bool fours)
      : op_(op), memory_(memory), fours_(fours) {
    const int row = static_cast<int>(threadIdx.x) * kScanFour / kChannels;
    const int channel = block.first_channel + static_cast<int>(threadIdx.x) * kScanFour % kChannels;
    channels_ = min(kScanFour, op.D - channel);
    remaining_ = channels_ > 0 ? block.rows - row : 0;
#pragma unroll
    for (int k = 0; k < Op::kInputs; ++k) {
      from_[k] = op.input[k] + (block.begin + row) * op.stride[k] + channel;
    }
  }

  // Starts the copy of the next tile. Rows after the last of the sequence are not copied.
  __device__ void copy() {
    if (remaining_ > 0) {
      auto* to = &memory_.inputs[stage_][0][threadIdx.x];
      fours_ ? copy_four(to) : copy_each(to);
    }
    commit_copies();
#pragma unroll
    for (int k = 0; k < Op::kInputs; ++k) from_[k] += int64_t{kRows} * op_.stride[k];
    remaining_ -= kRows;
    stage_ = after(stage_, kScanStages);
  }
  // Waits for all tiles but the last kTiles that copy() has started.
  template <int kTiles>
  __device__ static void wait_but() {
    wait_for_all_but<kTiles>();
  }

 private:
  static constexpr int kRows = kScanRows<kWarps, kChannels>;

  __device__ void copy_four(float4* to) const {
#pragma unroll
    for (int k = 0; k < Op::kInputs; ++k) {
      copy_async<16>(reinterpret_cast<float*>(to + k * Memory::kThreads), from_[k]);
    }
  }
  __device__ void copy_each(float4* to) const {
#pragma unroll
    for (int k = 0; k < Op::kInputs; ++k) {
      auto* channels = reinterpret_cast<float*>(to + k * Memory::kThreads);
#pragma unroll 1
      for (int c = 0; c < channels_; ++c) copy_async<4>(channels + c, from_[k] + c);
    }
  }

  const Op& op_;
  Memory& memory_;
  const bool fours_;
  int channels_;   // that exist
  int remaining_;  // rows from the thread's row of the next tile on
  int stage_ = 0;  // of the next tile
  const float* from_[Op::kInputs];
};

__device__ inline float& part(float4& four, int c) { return reinterpret_cast<float*>(&four)[c]; }

// The coefficients of four channels, from shared memory to shared memory.
template <typename Op, int kWarps>
__device__ void store_coefficients(ScanMemory<Op, kWarps>& memory, int buffer,
                                   float4 (&inputs)[Op::kInputs],
                                   const typename Op::Weights (&weights)[kScanFour], bool first) {
  float4 a, x, gate;
#pragma unroll
  for (int c = 0; c < kScanFour; ++c) {
    float in[Op::kInputs];
#pragma unroll
    for (int k = 0; k < Op::kInputs; ++k) in[k] = part(inputs[k], c);
    const Coefficients all = Op::of(in, weights[c], first);
    part(a, c) = all.a, part(x, c) = all.x, part(gate, c) = all.gate;
  }
  memory.coefficients[buffer][0][threadIdx.x] = a;
  memory.coefficients[buffer][1][threadIdx.x] = x;
  if constexpr (Op::kGated) memory.coefficients[buffer][2][threadIdx.x] = gate;
}

// The work of a thread that computes coefficients. All threads of a block meet at one barrier a
// tile: tile n is computed before the n-th, and its states after it.
template <typename Op, int kWarps, int kChannels>
__device__ void compute_coefficients(const Op& op, const ScanBlock& block,
                                     ScanMemory<Op, kWarps>& memory, bool fours, bool fresh) {
  const int four = static_cast<int>(threadIdx.x) * kScanFour;
  typename Op::Weights weights[kScanFour];
#pragma unroll
  for (int c = 0; c < kScanFour; ++c) {
    weights[c] = op.weights(min(block.first_channel + four % kChannels + c, op.D - 1));
  }
  InputCopier<Op, kWarps, kChannels> copier(op, block, memory, fours);
#pragma unroll 1
  for (int stage = 0; stage < kScanStages - 1; ++stage) copier.copy();
  int stage = 0, buffer = 0;
  bool first = fresh && four < kChannels;
  for (int tile = 0; tile < block.tiles; ++tile) {
    copier.template wait_but<kScanStages - 2>();
    float4 inputs[Op::kInputs];
#pragma unroll
    for (int k = 0; k < Op::kInputs; ++k) inputs[k] = memory.inputs[stage][k][threadIdx.x];
    // Into the stage of the tile before. Reads would queue behind copies that come first.
    copier.copy();
    store_coefficients<Op, kWarps>(memory, buffer, inputs, weights, first);
    first = false;
    stage = after(stage, kScanStages);
    buffer = after(buffer, kScanBuffers);
    __syncthreads();
  }
}

// Computes the states and outputs of a channel, with one thread.
template <typename Op, int kWarps, int kChannels>
class StateScan {
 public:
  using Memory = ScanMemory<Op, kWarps>;

  // own: index of the channel in the block. writes: no other thread has the channel.
  __device__ StateScan(const Op& op, const ScanBlock& block, const Memory& memory, int own,
                       bool writes)
      : block_(block),
        memory_(memory),
        own_(own),
        D_(op.D),
        writes_(writes),
        y_(op.y + block.begin * op.D + block.first_channel + own) {}

  // Goes through all rows. Takes the state before them and returns the state after them.
  __device__ float scan(float h) {
    h_ = h;
    int buffer = 0;
    for (int tile = 0; tile < block_.tiles; ++tile) {
      __syncthreads();
      const int rows = min(kRows, block_.rows - tile * kRows), full = rows / kBatch * kBatch;
      scan_batches(buffer, full, rows == kRows);
#pragma unroll 1
      for (int row = rows == kRows ? kRows : full; row < rows; ++row, y_ += D_) {
        scan_row(read(buffer, row), y_);
      }
      buffer = after(buffer, kScanBuffers);
    }
    return h_;
  }

 private:
  static constexpr int kRows = kScanRows<kWarps, kChannels>;
  // Rows that are read together, one batch ahead, and those of a whole tile behind its last batch.
  static constexpr int kBatch = 8, kRest = kRows % kBatch;
  static_assert(kRows >= kBatch);

  __device__ Coefficients read(int buffer, int row) const {
    const auto at = [&](int array) {
      return reinterpret_cast<const float*>(
          memory_.coefficients[buffer][array])[row * kChannels + own_];
    };
    if constexpr (Op::kGated) return {at(0), at(1), at(2)};
    return {at(0), at(1), 1};
  }
  // whole: also the rows behind the last batch, which are read with it.
  __device__ void scan_batches(int buffer, int rows, bool whole) {
    Coefficients next[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) next[i] = read(buffer, i);
#pragma unroll 2
    for (int row = 0; row < rows; row += kBatch) {
      Coefficients now[kBatch];
      const int ahead = min(row + kBatch, kRows - kBatch);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        now[i] = next[i];
        next[i] = read(buffer, ahead + i);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) scan_row(now[i], y_ + i * D_);
      y_ += kBatch * D_;
    }
    if constexpr (kRest > 0) {
      if (!whole) return;
#pragma unroll
      for (int i = 0; i < kRest; ++i) scan_row(next[kBatch - kRest + i], y_ + i * D_);
      y_ += kRest * D_;
    }
  }
  __device__ void scan_row(const Coefficients& c, float* y) {
    h_ = advance(c.a, h_, c.x);
    if (writes_) *y = output_of<Op::kGated>(c.gate, h_);
  }

  const ScanBlock& block_;
  const Memory& memory_;
  const int own_;
  const uint32_t D_;
  const bool writes_;
  float h_ = 0;
  float* y_;  // of the next row
};

}  // namespace recurve::cuda::sm80
