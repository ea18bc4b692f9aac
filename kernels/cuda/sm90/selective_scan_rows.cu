// The selective scan of prompts, after their time steps are made. Rows go one after the other: a
// channel's states stay in the registers of a few lanes, and what bounds it is that each state
// takes an exponential a row. So the rest is kept away from these lanes: a warp has the copy engine
// bring the rows ahead, and others turn sums over the states into outputs.
#include <algorithm>

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/selective_scan.cuh"
#include "kernels/cuda/sm90/bulk.cuh"
#include "kernels/cuda/sm90/selective_scan.h"

namespace recurve::cuda::sm90 {
namespace {

using namespace sm80;  // NOLINT: the scan's device functions, which all its kernels share

constexpr int kN = kScanShort;
constexpr int kRows = 16;  // of a stage
constexpr int kQuads = kRows / 4;
constexpr int kStages = 4, kMostStages = 6;

constexpr int kLanes = kScanLanes;  // that a channel's sums come from, each of a quad of states

// What the warps of a block do. Four multiprocessor parts have every fourth warp each: warps that
// scan are spread evenly over them, and the others to where there is room.
enum class Role { kScanQuads, kScanPairs, kPutOutputs, kBringRows };
struct Task {
  Role role;
  int number;  // of the warp among those of its role
};

// Lanes have a quad of states each, of 8 channels a warp.
struct Even {
  static constexpr int kChannels = 32, kQuadWarps = 4, kPairWarps = 0, kWarps = 9, kBlocks = 3;
  __device__ static Task task_of(int warp) {
    if (warp < 4) return {Role::kScanQuads, warp};
    return warp < 8 ? Task{Role::kPutOutputs, warp - 4} : Task{Role::kBringRows, 0};
  }
};

// The same, and of the last 8 channels a pair of states, of 4 channels a warp: where a tile of 40
// is what makes as many blocks as the GPU has multiprocessors.
struct Mixed {
  static constexpr int kChannels = 40, kQuadWarps = 4, kPairWarps = 2, kWarps = 12, kBlocks = 1;
  __device__ static Task task_of(int warp) {
    if (warp < 4) return {Role::kScanQuads, warp};
    if (warp < 6) return {Role::kPutOutputs, warp - 4};
    if (warp < 8) return {Role::kScanPairs, warp - 6};
    if (warp < 10) return {Role::kPutOutputs, warp - 6};
    return warp == 10 ? Task{Role::kBringRows, 0} : Task{Role::kPutOutputs, 4};
  }
};

// Rows on their way through a block.
template <typename Cut>
struct Stage {
  float* dt;    // (kRows, kChannels)
  float* x;     // (kRows, kChannels)
  float* z;     // (kRows, kChannels)
  float* BC;    // (kRows, 2 kN)
  float4* sum;  // (kQuads, kChannels, kLanes) over a lane's states: of four rows

  static constexpr int kRowFloats = 3 * Cut::kChannels + 2 * kN;
  static constexpr int kFloats = kRows * (kRowFloats + Cut::kChannels * kLanes);
  static constexpr int kBytes = sizeof(float) * kFloats;

  __device__ explicit Stage(float* memory)
      : dt(memory),
        x(dt + kRows * Cut::kChannels),
        z(x + kRows * Cut::kChannels),
        BC(z + kRows * Cut::kChannels),
        sum(reinterpret_cast<float4*>(BC + kRows * 2 * kN)) {}

  // The sums of two rows of banks' worth of channels stand in turned order, so that threads with a
  // channel each do not meet.
  __device__ static int place_of(int channel, int lane) {
    return channel * kLanes + (lane ^ (channel / 2 % kLanes));
  }
};

struct Shared {
  // A stage's rows are there; its sums are; both have been read.
  Barrier full[kMostStages], summed[kMostStages], free[kMostStages];
};

struct Work {
  int tiles, stages;
  const float* BC;  // (rows, 2 kN)
  int BC_stride;
};

// The rows of a sequence, and the block's channels from the first on.
struct Place {
  int64_t begin;
  int L, channel;
  __device__ int turns() const { return (L + kRows - 1) / kRows; }
  __device__ int rows(int turn) const { return min(kRows, L - turn * kRows); }
};

template <typename Cut>
struct Ring {
  float* memory;
  int stages;
  int at = 0, parity = 0;
  __device__ Stage<Cut> stage() const { return Stage<Cut>(memory + at * Stage<Cut>::kFloats); }
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

// By a warp.
template <typename Cut>
__device__ void bring_rows(const SelectiveScanArgs& a, const Work& work, const Place& place,
                           Ring<Cut> ring, Shared& shared) {
  const auto first = [&](const float* array, int stride) {
    return array + place.begin * stride + place.channel;
  };
  RowCopies<Cut::kChannels> dt(first(a.scratch, a.D), a.D);
  RowCopies<Cut::kChannels> x(first(a.x, a.x_stride), a.x_stride);
  // Without a gate something else, which nobody reads.
  RowCopies<Cut::kChannels> z(a.z == nullptr ? first(a.x, a.x_stride) : first(a.z, a.z_stride),
                              a.z == nullptr ? a.x_stride : a.z_stride);
  RowCopies<2 * kN> BC(work.BC + place.begin * work.BC_stride, work.BC_stride);
  const uint32_t memory = shared_address(ring.memory) + threadIdx.x % kWarpSize * 16;
  for (int turn = 0; turn < place.turns(); ++turn, ring.next()) {
    const int rows = place.rows(turn);
    const uint32_t to = memory + ring.at * Stage<Cut>::kBytes;
    const auto copy = [&](auto all) {
      constexpr bool kAll = decltype(all)::value;
      constexpr uint32_t kArray = sizeof(float) * kRows * Cut::kChannels;
      dt.template copy<kAll>(to, rows);
      x.template copy<kAll>(to + kArray, rows);
      z.template copy<kAll>(to + 2 * kArray, rows);
      BC.template copy<kAll>(to + 3 * kArray, rows);
    };
    if (turn >= ring.stages) wait(&shared.free[ring.at], ring.parity ^ 1);
    if (rows == kRows) {
      copy(std::true_type());
    } else {
      copy(std::false_type());
    }
    arrive_when_copied(&shared.full[ring.at]);
  }
}

// As many floats side by side.
template <int kCount>
struct Floats {
  float v[kCount];
  __device__ explicit Floats(const float* from) {
    if constexpr (kCount == 1) {
      v[0] = *from;
    } else if constexpr (kCount == 2) {
      const float2 two = *reinterpret_cast<const float2*>(from);
      v[0] = two.x;
      v[1] = two.y;
    } else {
      const float4 four = *reinterpret_cast<const float4*>(from);
      v[0] = four.x;
      v[1] = four.y;
      v[2] = four.z;
      v[3] = four.w;
    }
  }
};

// What a lane of a scanning warp keeps: so many states of a channel.
template <typename T, typename Cut, int kStates>
struct Scan {
  static constexpr int kLanesOfChannel = kN / kStates;
  int channel, part;  // of the block's channels; of the lanes that share it
  int chunk, left;    // rows of a chunk, and to the end of this one
  float h[kStates], rate[kStates];

  __device__ Scan(const SelectiveScanArgs& a, const Place& place, int first, const T* state)
      : chunk(a.chunk), left(a.chunk) {
    const int lane = threadIdx.x % kWarpSize;
    channel = first + lane / kLanesOfChannel;
    part = lane % kLanesOfChannel;
#pragma unroll
    for (int s = 0; s < kStates; ++s) {
      rate[s] = __fmul_rn(a.A[int64_t{place.channel} * kN + at(s)], kLog2e);
      h[s] = value_of(state[at(s)]);
    }
  }
  __device__ int at(int s) const { return channel * kN + part * kStates + s; }

  __device__ void keep(T* state) const {
#pragma unroll
    for (int s = 0; s < kStates; ++s) state[at(s)] = kept_as<T>(h[s]);
  }

  // A row on: what a quad of states adds to the output.
  __device__ float advance(const Stage<Cut>& stage, int row) {
    const float dt = stage.dt[row * Cut::kChannels + channel];
    const float dtx = __fmul_rn(dt, stage.x[row * Cut::kChannels + channel]);
    const Floats<kStates> B(stage.BC + row * 2 * kN + part * kStates);
    const Floats<kStates> C(stage.BC + row * 2 * kN + kN + part * kStates);
#pragma unroll
    for (int s = 0; s < kStates; ++s) ScanQuad::advance(h[s], dt, dtx, rate[s], B.v[s]);
    const float sum = ScanQuad::pair_sum(h[0], h[1], C.v[0], C.v[1]);
    if constexpr (kStates == 4) {
      return __fadd_rn(sum, ScanQuad::pair_sum(h[2], h[3], C.v[2], C.v[3]));
    } else {
      return __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 1));
    }
  }

  // The rows of a chunk end where they end, and what is kept is rounded there.
  __device__ void count_rows(int rows) {
    if constexpr (!std::is_same_v<T, float>) {
      left -= rows;
      if (left > 0) return;
      left = chunk;
#pragma unroll
      for (int s = 0; s < kStates; ++s) h[s] = rounded<T>(h[s]);
    }
  }

  __device__ void advance_all(const Stage<Cut>& stage, int rows) {
    const bool writes = kStates == 4 || part % 2 == 0;
    float4* to = stage.sum + Stage<Cut>::place_of(channel, part * kStates / 4);
    if (rows == kRows && (std::is_same_v<T, float> || left >= kRows)) {
      float sums[kRows];
#pragma unroll
      for (int row = 0; row < kRows; ++row) sums[row] = advance(stage, row);
      count_rows(kRows);
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        if (writes) {
          to[q * Cut::kChannels * kLanes] =
              make_float4(sums[4 * q], sums[4 * q + 1], sums[4 * q + 2], sums[4 * q + 3]);
        }
      }
      return;
    }
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
      const float sum = advance(stage, row);
      count_rows(1);
      auto* four = reinterpret_cast<float*>(to + row / 4 * Cut::kChannels * kLanes);
      if (writes) four[row % 4] = sum;
    }
  }
};

// first: of the block's channels.
template <int kStates, typename T, typename Cut>
__device__ void scan_rows_of(const SelectiveScanArgs& a, const Place& place, int first,
                             Ring<Cut> ring, Shared& shared, T* state) {
  Scan<T, Cut, kStates> scan(a, place, first, state);
  for (int turn = 0; turn < place.turns(); ++turn, ring.next()) {
    const Stage<Cut> stage = ring.stage();
    wait(&shared.full[ring.at], ring.parity);
    scan.advance_all(stage, place.rows(turn));
    __syncwarp();
    if (threadIdx.x % kWarpSize == 0) arrive(&shared.summed[ring.at]);
  }
  scan.keep(state);
}

__device__ inline float4 sum_of(const float4& a, const float4& b) {
  return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z),
                     __fadd_rn(a.w, b.w));
}

// A thread: four rows of a channel.
template <typename Cut>
__device__ void put_outputs(const SelectiveScanArgs& a, const Place& place, int thread,
                            Ring<Cut> ring, Shared& shared) {
  const int quad = thread / Cut::kChannels, own = thread % Cut::kChannels;
  const int channel = place.channel + own;
  const float skip = a.skip[channel];
  int64_t at = (place.begin + 4 * quad) * a.D + channel;  // of the first of its outputs
  for (int turn = 0; turn < place.turns(); ++turn, ring.next()) {
    const int rows = place.rows(turn) - 4 * quad;
    const Stage<Cut> stage = ring.stage();
    wait(&shared.full[ring.at], ring.parity);
    float x[4], z[4] = {};
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const int in = (4 * quad + t) * Cut::kChannels + own;
      x[t] = stage.x[in];
      if (a.z != nullptr) z[t] = stage.z[in];
    }
    wait(&shared.summed[ring.at], ring.parity);
    float4 sums[kLanes];
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      sums[lane] = stage.sum[quad * Cut::kChannels * kLanes + Stage<Cut>::place_of(own, lane)];
    }
    __syncwarp();
    if (threadIdx.x % kWarpSize == 0) arrive(&shared.free[ring.at]);
    const float4 sum = sum_of(sum_of(sums[0], sums[1]), sum_of(sums[2], sums[3]));
    const float y[4] = {
        scan_output(a, sum.x, skip, x[0], z[0]), scan_output(a, sum.y, skip, x[1], z[1]),
        scan_output(a, sum.z, skip, x[2], z[2]), scan_output(a, sum.w, skip, x[3], z[3])};
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      if (t < rows) put(a.y, a.y_bf16, at + t * a.D, y[t]);
    }
    at += kRows * a.D;
  }
}

template <typename T, typename Cut>
__global__ void __launch_bounds__(Cut::kWarps* kWarpSize, Cut::kBlocks)
    rows_kernel(SelectiveScanArgs a, Work work) {
  extern __shared__ __align__(128) float memory[];
  __shared__ Shared shared;
  let_next_start();
  if (threadIdx.x == 0) {
    for (int s = 0; s < work.stages; ++s) {
      init_barrier(&shared.full[s], kWarpSize);
      init_barrier(&shared.summed[s], Cut::kQuadWarps + Cut::kPairWarps);
      init_barrier(&shared.free[s], Cut::kChannels * kQuads / kWarpSize);
    }
    publish_barriers();
  }
  __syncthreads();
  wait_for_previous();
  const int sequence = static_cast<int>(blockIdx.x) / work.tiles;
  const int channel = static_cast<int>(blockIdx.x) % work.tiles * Cut::kChannels;
  const int begin = a.seqs.begin[sequence];
  const Place place{begin, a.seqs.begin[sequence + 1] - begin, channel};
  const Ring<Cut> ring{memory, work.stages};
  T* state = values_of<T>(a.h) + (int64_t{a.seqs.slot[sequence]} * a.D + channel) * kN;
  const int warp = threadIdx.x / kWarpSize;
  const Task task = Cut::task_of(warp);
  switch (task.role) {
    case Role::kScanQuads:
      return scan_rows_of<4>(a, place, 8 * task.number, ring, shared, state);
    case Role::kScanPairs:
      if constexpr (Cut::kPairWarps > 0) {
        scan_rows_of<2>(a, place, 8 * Cut::kQuadWarps + 4 * task.number, ring, shared, state);
      }
      return;
    case Role::kPutOutputs:
      return put_outputs(a, place, task.number * kWarpSize + threadIdx.x % kWarpSize, ring, shared);
    case Role::kBringRows:
      return bring_rows(a, work, place, ring, shared);
  }
}

template <typename T, typename Cut>
void launch_rows(const SelectiveScanArgs& args, int stages, Stream& stream) {
  const bool normed = args.norm_eps > 0;
  const Work work{args.D / Cut::kChannels, stages,
                  normed ? args.scratch + int64_t{args.seqs.rows} * args.D : args.params + args.R,
                  normed ? 2 * kN : args.params_stride};
  abort_if_failed(
      cudaFuncSetAttribute(rows_kernel<T, Cut>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           kMostStages * Stage<Cut>::kBytes),
      "selective_scan, shared memory");
  launch_early(stream, "selective_scan, rows", rows_kernel<T, Cut>,
               {.grid = static_cast<unsigned>(args.seqs.num_seqs * work.tiles),
                .threads = Cut::kWarps * kWarpSize,
                .shared = static_cast<size_t>(stages * Stage<Cut>::kBytes)},
               args, work);
}

// What a row costs where a multiprocessor has so many blocks, in cycles as an H200 takes them.
int cost_of_even(int blocks) {
  if (blocks <= 2) return blocks == 1 ? 70 : 110;
  return 52 * blocks;  // three at a time
}
int cost_of_mixed(int blocks) { return 77 * blocks; }  // one at a time

template <typename T>
void launch_cut(const SelectiveScanArgs& args, Stream& stream) {
  const int multiprocessors = static_cast<CudaStream&>(stream).multiprocessors();
  const auto blocks_each = [&](int channels) {
    return ceil_div(args.seqs.num_seqs * (args.D / channels), multiprocessors);
  };
  const int even = blocks_each(Even::kChannels), mixed = blocks_each(Mixed::kChannels);
  if (args.D % Mixed::kChannels == 0 && cost_of_mixed(mixed) < cost_of_even(even)) {
    return launch_rows<T, Mixed>(args, kStages, stream);
  }
  // Where two blocks are for each multiprocessor there is no room for a third.
  launch_rows<T, Even>(args, even == 2 ? kMostStages : kStages, stream);
}

}  // namespace

bool takes_scan_rows(const SelectiveScanArgs& a) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return takes_step_tiles(a) && a.N == kN && a.x_stride % 4 == 0 && a.z_stride % 4 == 0 &&
         aligned(a.x) && aligned(a.z) && aligned(a.scratch);
}

void scan_rows(const SelectiveScanArgs& args, Stream& stream) {
  selective_scan_time_steps(args, stream);
  with_state_type(args.h.dtype, [&](auto kept) { launch_cut<decltype(kept)>(args, stream); });
}

}  // namespace recurve::cuda::sm90
