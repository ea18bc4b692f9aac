// A decode of the selective scan. Most of its bytes are states, so these pass through a ring of
// stages in shared memory, which the copy engine fills and empties while the block computes: as
// many bytes are under way as memory wants, whatever the registers hold.
#include <algorithm>

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/channels/selective_scan.cuh"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm90/bulk.cuh"
#include "kernels/cuda/sm90/channels/selective_scan.h"
#include "kernels/cuda/sm90/ops.h"

namespace recurve::cuda::sm90 {
namespace {

using namespace sm80;  // NOLINT: the scan's device functions, which all its kernels share

constexpr int kRows = kTileRows;            // of a stage
constexpr int kOwned = kRows / kScanLanes;  // of these a lane has the time step and the gate
constexpr int kThreads = kStepThreads + kWarpSize;  // those that compute, and a warp that copies
constexpr int kN = kScanShort;
constexpr int kMostStages = 4;
constexpr int kMostSlabs = 4;  // of R, a warp's part
constexpr int kLargestRank = kMostSlabs * kStepParts * kSlab;

// What comes for a few sequences, one row each.
template <typename T>
struct Stage {
  T* h;           // (kRows, kStepChannels, kN)
  float* params;  // (kRows, R + 2 kN)
  float* x;       // (kRows, kStepChannels)
  float* z;       // (kRows, kStepChannels)

  static constexpr int kTileBytes = sizeof(T) * kStepChannels * kN;  // of a row of h
  static constexpr int kChannelBytes = sizeof(float) * kStepChannels;
  __host__ __device__ static int param_bytes(int R) {
    return static_cast<int>(sizeof(float)) * (R + 2 * kN);
  }
  __host__ __device__ static int row_bytes(int R) {
    return kTileBytes + param_bytes(R) + 2 * kChannelBytes;
  }

  __device__ Stage(std::byte* memory, int R) {
    h = reinterpret_cast<T*>(memory);
    params = reinterpret_cast<float*>(memory + kRows * kTileBytes);
    x = params + kRows * (R + 2 * kN);
    z = x + kRows * kStepChannels;
  }
};

// Time steps of a turn, in the making.
struct Steps {
  float sums[kStepParts][kRows][kStepPitch];
  float scale[kRows];  // of low
};

struct Shared {
  Steps steps[2];  // of a turn and of the next
  Barrier full[kMostStages], done[kMostStages];
};

__device__ int width_of(const SelectiveScanArgs& a) { return a.R + 2 * kN; }  // of params

// Sequences [first, end) and channels [channel, channel + kStepChannels).
struct BlockCoord {
  int channel, first, end;
};

template <typename T>
__device__ T* state_at(const SelectiveScanArgs& a, int row, int channel) {
  return values_of<T>(a.h) + (int64_t{a.seqs.slot[row]} * a.D + channel) * kN;
}

// Fills a stage with the sequences from `row` on. By a warp, a lane a sequence.
template <typename T>
__device__ void fill(const SelectiveScanArgs& a, const BlockCoord& block, int row,
                     const Stage<T>& stage, Barrier* full) {
  using S = Stage<T>;
  const int lane = threadIdx.x % kWarpSize, rows = min(kRows, block.end - row);
  const int gate_bytes = a.z == nullptr ? 0 : S::kChannelBytes;
  if (lane == 0) {
    arrive_expecting(full,
                     rows * (S::kTileBytes + S::param_bytes(a.R) + S::kChannelBytes + gate_bytes));
  }
  __syncwarp();
  if (lane >= rows) return;
  const int64_t at = row + lane;
  bulk_load(stage.h + lane * kStepChannels * kN, state_at<T>(a, at, block.channel), S::kTileBytes,
            full);
  bulk_load(stage.params + lane * width_of(a), a.params + at * a.params_stride, S::param_bytes(a.R),
            full);
  bulk_load(stage.x + lane * kStepChannels, a.x + at * a.x_stride + block.channel, S::kChannelBytes,
            full);
  if (a.z != nullptr) {
    bulk_load(stage.z + lane * kStepChannels, a.z + at * a.z_stride + block.channel,
              S::kChannelBytes, full);
  }
}

// Empties a stage. The warp that had filled it calls it.
template <typename T>
__device__ void empty(const SelectiveScanArgs& a, const BlockCoord& block, int row,
                      const Stage<T>& stage) {
  const int lane = threadIdx.x % kWarpSize;
  if (lane < min(kRows, block.end - row)) {
    bulk_store(state_at<T>(a, row + lane, block.channel), stage.h + lane * kStepChannels * kN,
               Stage<T>::kTileBytes);
  }
  commit_stores();
}

// The projection of a warp's 16 channels, its part of R.
struct StepWeights {
  uint4 own[kMostSlabs][2];

  static __device__ int slab(int j) {
    return (kStepParts * j + static_cast<int>(threadIdx.x) / kWarpSize / 4) * kSlab;
  }
  static __device__ int first_channel() {
    return static_cast<int>(threadIdx.x) / kWarpSize % 4 * kTileN;
  }

  __device__ StepWeights(const SelectiveScanArgs& a, int channel) {
    const int lane = threadIdx.x % kWarpSize;
    const auto* w = static_cast<const uint16_t*>(a.dt_proj.data) +
                    int64_t{channel + first_channel() + lane / 4} * a.R + 8 * (lane % 4);
#pragma unroll
    for (int j = 0; j < kMostSlabs; ++j) {
      if (slab(j) >= a.R) break;
      own[j][0] = *reinterpret_cast<const uint4*>(w + slab(j));
      own[j][1] = *reinterpret_cast<const uint4*>(w + 8 * a.R + slab(j));
    }
  }

  // Does what multiply_step_rows() does.
  __device__ void multiply(const SelectiveScanArgs& a, const float* params, int rows,
                           Steps& steps) const {
    const int lane = threadIdx.x % kWarpSize, m0 = first_channel();
    const int part = threadIdx.x / kWarpSize / 4;
    const float* x = params + min(lane / 4, rows - 1) * width_of(a) + 8 * (lane % 4);
    Accumulator<1, 1> sum;
#pragma unroll
    for (int j = 0; j < kMostSlabs; ++j) {
      if (slab(j) >= a.R) break;
      sum.add(own[j], 0,
              split(*reinterpret_cast<const float4*>(x + slab(j)),
                    *reinterpret_cast<const float4*>(x + slab(j) + 4)));
    }
    sum.for_each([&](int n, int r, float value) { steps.sums[part][r][m0 + n] = value; });
  }
};

// B and C in place, the scale of low next to the sums. A warp a row.
__device__ void norm_params(const SelectiveScanArgs& a, float* params, int rows, Steps& steps) {
  static_assert(kRows == kStepThreads / kWarpSize);
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  if (warp >= rows) return;
  params += warp * width_of(a);
  const float scale = low_scale(a, params);
  if (lane == 0) steps.scale[warp] = scale;
  auto* quad = reinterpret_cast<float4*>(params + a.R) + lane % (2 * kN / 4);
  const float4 normed = normed_quad(*quad, a);
  __syncwarp();
  if (lane < 2 * kN / 4) *quad = normed;
}

// What a thread keeps: a quad of the states of one channel.
struct Own {
  int channel;  // of the tile
  int part, n;  // of the channel: its quad, and the first state of it
  ScanQuad quad;
  float bias, skip;

  __device__ Own(const SelectiveScanArgs& a, int tile)
      : channel(threadIdx.x / kScanLanes),
        part(threadIdx.x % kScanLanes),
        n(4 * part),
        quad(*reinterpret_cast<const float4*>(a.A + int64_t{tile + channel} * kN + n)),
        bias(a.dt_bias[tile + channel]),
        skip(a.skip[tile + channel]) {}

  // The states of a stage a row on, and their outputs.
  template <typename T>
  __device__ void advance(const SelectiveScanArgs& a, const BlockCoord& block, int row,
                          const Stage<T>& stage, const Steps& steps) const {
    const int rows = min(kRows, block.end - row), width = width_of(a);
    float dt_own[kOwned], y_own[kOwned];
#pragma unroll
    for (int j = 0; j < kOwned; ++j) {
      const int r = j * kScanLanes + part;
      float sum = steps.sums[0][r][channel] + steps.sums[1][r][channel];
      if (a.norm_eps > 0) sum = __fmul_rn(sum, steps.scale[r]);
      dt_own[j] = time_step(sum + bias);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
      const float dt = __shfl_sync(kAllLanes, dt_own[r / kScanLanes], r % kScanLanes, kScanLanes);
      const float x = stage.x[r * kStepChannels + channel];
      T* at = stage.h + (r * kStepChannels + channel) * kN + n;
      const auto* B = reinterpret_cast<const float4*>(stage.params + r * width + a.R + n);
      float4 h = widened(*reinterpret_cast<const Four<T>*>(at));
      const float sum = quad.advance(h, dt, __fmul_rn(dt, x), B[0], B[kN / 4]);
      *reinterpret_cast<Four<T>*>(at) = four_of<T>(h);
      const float y = sum_of_scan_lanes(sum);
      if (r % kScanLanes == part) y_own[r / kScanLanes] = y;
    }
#pragma unroll
    for (int j = 0; j < kOwned; ++j) {
      const int r = j * kScanLanes + part, at = r * kStepChannels + channel;
      if (r >= rows) break;
      const float z = a.z == nullptr ? 0 : stage.z[at];
      put_scan_output(a, row + r, block.channel + channel,
                      scan_output(a, y_own[j], skip, stage.x[at], z));
    }
  }
};

__device__ void sync_computing() { asm volatile("bar.sync 1, %0;" ::"n"(kStepThreads) : "memory"); }

// How a launch divides the work: blocks are tiles of channels of `each` sequences.
struct StepsConfig {
  int tiles, each, stages;
};

template <typename T>
struct Ring {
  std::byte* memory;
  int stages, R;
  __device__ Stage<T> operator[](int turn) const {
    return Stage<T>(memory + turn % stages * kRows * Stage<T>::row_bytes(R), R);
  }
};

// The warp that copies: a turn's states go out when the block is done with them, and the turn after
// the next few comes into the place of the one before.
template <typename T>
__device__ void copy_states(const SelectiveScanArgs& a, const BlockCoord& block,
                            const Ring<T>& ring, int turns, Shared& shared) {
  const auto come = [&](int turn) {
    fill(a, block, block.first + turn * kRows, ring[turn], &shared.full[turn % ring.stages]);
  };
  for (int i = 0; i < min(turns, ring.stages); ++i) come(i);
  for (int i = 0; i < turns; ++i) {
    wait(&shared.done[i % ring.stages], i / ring.stages % 2);
    empty(a, block, block.first + i * kRows, ring[i]);
    if (i + ring.stages >= turns) continue;
    wait_until_read();
    __syncwarp();
    come(i + ring.stages);
  }
  wait_for_stores();
}

// Four lanes have a channel. Registers are for kBlocks on one multiprocessor.
template <typename T, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    steps_kernel(SelectiveScanArgs a, StepsConfig config) {
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ Shared shared;
  let_next_start();
  const int first = static_cast<int>(blockIdx.x) / config.tiles * config.each;
  const BlockCoord block{static_cast<int>(blockIdx.x) % config.tiles * kStepChannels, first,
                         min(first + config.each, a.seqs.num_seqs)};
  const int count = block.end - first, turns = (count + kRows - 1) / kRows;
  const Ring<T> ring{memory, config.stages, a.R};
  if (threadIdx.x == kStepThreads) {
    for (int s = 0; s < config.stages; ++s) {
      init_barrier(&shared.full[s], 1);
      init_barrier(&shared.done[s], kStepThreads / kWarpSize);
    }
    publish_barriers();
  }
  if (threadIdx.x >= kStepThreads) {
    const int lane = threadIdx.x % kWarpSize;
    for (int r = lane; r < min(count, kRows); r += kWarpSize) {
      bulk_prefetch(state_at<T>(a, first + r, block.channel), Stage<T>::kTileBytes);
    }
    __syncthreads();
    wait_for_previous();
    copy_states(a, block, ring, turns, shared);
    return;
  }
  const StepWeights weights(a, block.channel);
  const Own own(a, block.channel);
  __syncthreads();
  wait_for_previous();
  for (int i = 0; i < turns; ++i) {
    const int row = first + i * kRows, rows = min(kRows, block.end - row);
    const Stage<T> stage = ring[i];
    Steps& steps = shared.steps[i % 2];
    wait(&shared.full[i % ring.stages], i / ring.stages % 2);
    weights.multiply(a, stage.params, rows, steps);
    if (a.norm_eps > 0) norm_params(a, stage.params, rows, steps);
    sync_computing();
    own.advance(a, block, row, stage, steps);
    show_to_copies();
    __syncwarp();
    if (threadIdx.x % kWarpSize == 0) arrive(&shared.done[i % ring.stages]);
  }
}

bool takes(const SelectiveScanArgs& a) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return takes_step_tiles(a) && a.N == kN && a.R <= kLargestRank && a.seqs.max_len == 1 &&
         a.x_stride % 4 == 0 && a.z_stride % 4 == 0 && aligned(a.x) && aligned(a.z) &&
         aligned(a.A) && aligned(a.h.data);
}

template <typename T>
void launch_steps(const SelectiveScanArgs& args, Stream& stream) {
  // Blocks that run at once, and bytes of shared memory for each.
  const int blocks = 2 * static_cast<CudaStream&>(stream).multiprocessors();
  constexpr int kRoom = 100 * 1024;
  const int tiles = args.D / kStepChannels, sequences = args.seqs.num_seqs;
  const int wanted = std::clamp(blocks / tiles, 1, sequences);
  const int each = ceil_div(sequences, wanted);
  const int groups = ceil_div(sequences, each), turns = ceil_div(each, kRows);
  const int stage = kRows * Stage<T>::row_bytes(args.R);
  const int stages = std::min({kMostStages, turns, kRoom / stage});
  const auto bytes = static_cast<size_t>(stages * stage);
  // Where two blocks of few sequences share a multiprocessor they leave registers for one of the
  // next layer. With more sequences the scan itself loses more by it.
  const bool shares = tiles * groups > blocks / 2 && sequences <= kRows;
  const auto kernel = shares ? steps_kernel<T, 3> : steps_kernel<T, 2>;
  abort_if_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kRoom),
                  "selective_scan, shared memory");
  launch_early(
      stream, "selective_scan, steps", kernel,
      {.grid = static_cast<unsigned>(tiles * groups), .threads = kThreads, .shared = bytes}, args,
      StepsConfig{tiles, each, stages});
}

}  // namespace

void run(const SelectiveScanArgs& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  if (args.seqs.max_len > 1 && takes_scan_rows(args)) return scan_rows(args, stream);
  if (!takes(args)) return sm80::run(args, stream);
  with_state_type(args.h.dtype, [&](auto kept) { launch_steps<decltype(kept)>(args, stream); });
}

}  // namespace recurve::cuda::sm90
