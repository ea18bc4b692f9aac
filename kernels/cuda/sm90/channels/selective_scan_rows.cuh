#pragma once
#include <type_traits>

#include "kernels/cuda/sm80/channels/selective_scan.cuh"
#include "kernels/cuda/sm90/async.cuh"

// How rows of the selective scan pass through a block: who of its warps does what, where the rows
// lie in shared memory, and how they come there.
namespace recurve::cuda::sm90::row_scan {

using namespace sm80;  // NOLINT: the scan's device functions, which all its kernels share

constexpr int kN = kScanShort;
constexpr int kRows = 16;  // of a stage
constexpr int kQuads = kRows / 4;
constexpr int kMostStages = 8;

constexpr int kLanes = kScanLanes;  // that a channel's sums come from, each of a quad of states

// What the warps of a block do. Four multiprocessor parts have every fourth warp each: warps that
// scan are spread evenly over them, and the others where resources remain.
enum class Role { kScanQuads, kScanPairs, kPutOutputs, kBringRows };
struct WarpRole {
  Role role;
  int number;  // of the warp among those of its role
};

// Lanes have a quad of states each, of 8 channels a warp.
struct Even {
  static constexpr int kChannels = 32, kQuadWarps = 4, kPairWarps = 0, kWarps = 9, kBlocks = 3;
  __device__ static WarpRole role_of(int warp) {
    if (warp < 4) return {Role::kScanQuads, warp};
    return warp < 8 ? WarpRole{Role::kPutOutputs, warp - 4} : WarpRole{Role::kBringRows, 0};
  }
};

// The same, but of the last 8 channels lanes have a pair of states each, of 4 channels a warp. For
// where a tile of 40 channels makes as many blocks as the GPU has multiprocessors.
struct Mixed {
  static constexpr int kChannels = 40, kQuadWarps = 4, kPairWarps = 2, kWarps = 12, kBlocks = 1;
  __device__ static WarpRole role_of(int warp) {
    if (warp < 4) return {Role::kScanQuads, warp};
    if (warp < 6) return {Role::kPutOutputs, warp - 4};
    if (warp < 8) return {Role::kScanPairs, warp - 6};
    if (warp < 10) return {Role::kPutOutputs, warp - 6};
    return warp == 10 ? WarpRole{Role::kBringRows, 0} : WarpRole{Role::kPutOutputs, 4};
  }
};

// Rows on their way through a block.
template <typename TileConfig>
struct Stage {
  float* dt;    // (kRows, kChannels)
  float* x;     // (kRows, kChannels)
  float* z;     // (kRows, kChannels)
  float* BC;    // (kRows, 2 kN)
  float4* sum;  // (kQuads, kChannels, kLanes) over a lane's states: of four rows

  static constexpr int kRowFloats = 3 * TileConfig::kChannels + 2 * kN;
  static constexpr int kFloats = kRows * (kRowFloats + TileConfig::kChannels * kLanes);
  static constexpr int kBytes = sizeof(float) * kFloats;

  __device__ explicit Stage(float* memory)
      : dt(memory),
        x(dt + kRows * TileConfig::kChannels),
        z(x + kRows * TileConfig::kChannels),
        BC(z + kRows * TileConfig::kChannels),
        sum(reinterpret_cast<float4*>(BC + kRows * 2 * kN)) {}

  // Two channels fill all banks: the next two have their lanes in another order, so that threads
  // with a channel each do not meet.
  __device__ static int place_of(int channel, int lane) {
    return channel * kLanes + (lane ^ (channel / 2 % kLanes));
  }
};

struct Shared {
  // A stage's rows are there; its sums are; both have been read.
  Barrier full[kMostStages], summed[kMostStages], free[kMostStages];
};

// How a launch divides the work, and where B and C are to be read, normed if they are.
struct LaunchParams {
  int tiles, stages;
  const float* BC;  // (rows, 2 kN)
  int BC_stride;
};

// The rows of a sequence, and the block's channels from the first on.
struct BlockCoord {
  int64_t begin;
  int L, channel;
  __device__ int steps() const { return (L + kRows - 1) / kRows; }
  __device__ int rows(int step) const { return min(kRows, L - step * kRows); }
};

template <typename TileConfig>
struct Ring {
  float* memory;
  int stages;
  int at = 0, parity = 0;
  __device__ Stage<TileConfig> stage() const {
    return Stage<TileConfig>(memory + at * Stage<TileConfig>::kFloats);
  }
  __device__ void next() {
    if (++at == stages) {
      at = 0;
      parity ^= 1;
    }
  }
};

// Copies of 16 bytes to shared memory; what a thread has asked for arrives on the barrier together.
__device__ inline void copy_quad(uint32_t to, const float* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void arrive_when_copied(Barrier* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// What a warp copies of an array: kWidth floats of each row. Where a lane's next copies come from
// is kept, as that is far more work than the copies.
template <int kWidth>
struct RowCopies {
  static constexpr int kQuadsOfRow = kWidth / 4, kCopies = kRows * kQuadsOfRow / kWarpSize;
  static_assert(kRows * kQuadsOfRow % kWarpSize == 0);
  const float* from[kCopies];
  int64_t step;

  __device__ RowCopies(const float* first, int stride) : step(int64_t{kRows} * stride) {
#pragma unroll
    for (int k = 0; k < kCopies; ++k) {
      from[k] = first + int64_t{place(k) / kQuadsOfRow} * stride + place(k) % kQuadsOfRow * 4;
    }
  }
  __device__ static int place(int k) {
    return k * kWarpSize + static_cast<int>(threadIdx.x) % kWarpSize;
  }
  // The next rows, kAll: kRows. to: an address in shared memory, of this lane's first quad.
  template <bool kAll>
  __device__ void copy(uint32_t to, int rows) {
#pragma unroll
    for (int k = 0; k < kCopies; ++k) {
      if (kAll || place(k) / kQuadsOfRow < rows) copy_quad(to + k * kWarpSize * 16, from[k]);
      from[k] += step;
    }
  }
};

// Brings the rows of a sequence. A warp calls it.
template <typename TileConfig>
__device__ void bring_rows(const SelectiveScanArgs& a, const LaunchParams& params,
                           const BlockCoord& block, Ring<TileConfig> ring, Shared& shared) {
  const auto first = [&](const float* array, int stride) {
    return array + block.begin * stride + block.channel;
  };
  RowCopies<TileConfig::kChannels> dt(first(a.scratch, a.D), a.D);
  RowCopies<TileConfig::kChannels> x(first(a.x, a.x_stride), a.x_stride);
  // Where there is no gate something else comes, which is not read.
  RowCopies<TileConfig::kChannels> z(
      a.z == nullptr ? first(a.x, a.x_stride) : first(a.z, a.z_stride),
      a.z == nullptr ? a.x_stride : a.z_stride);
  RowCopies<2 * kN> BC(params.BC + block.begin * params.BC_stride, params.BC_stride);
  const uint32_t memory = shared_address(ring.memory) + threadIdx.x % kWarpSize * 16;
  for (int step = 0; step < block.steps(); ++step, ring.next()) {
    const int rows = block.rows(step);
    const uint32_t to = memory + ring.at * Stage<TileConfig>::kBytes;
    const auto copy = [&](auto all) {
      constexpr bool kAll = decltype(all)::value;
      constexpr uint32_t kArray = sizeof(float) * kRows * TileConfig::kChannels;
      dt.template copy<kAll>(to, rows);
      x.template copy<kAll>(to + kArray, rows);
      z.template copy<kAll>(to + 2 * kArray, rows);
      BC.template copy<kAll>(to + 3 * kArray, rows);
    };
    if (step >= ring.stages) wait(&shared.free[ring.at], ring.parity ^ 1);
    if (rows == kRows) {
      copy(std::true_type());
    } else {
      copy(std::false_type());
    }
    arrive_when_copied(&shared.full[ring.at]);
  }
}

}  // namespace recurve::cuda::sm90::row_scan
