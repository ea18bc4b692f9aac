#pragma once
#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/capabilities.h"
#include "kernels/cuda/sm80/matrix/chunks.cuh"
#include "kernels/cuda/sm80/matrix/delta_rule.cuh"
#include "kernels/cuda/sm80/matrix/delta_rule.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/tile.cuh"

// Rows are brought to shared memory some at a time, while the ones before them are computed; a step
// has one. Outputs are sums over the keys of all threads of a warp, which are left in shared memory
// and added up when the rows of a stage are done, as no other row waits for them.
namespace recurve::cuda::sm80 {
namespace {

constexpr int kMostRows = 8;  // of a stage

// Where the arrays of a stage are, in floats from its beginning: rows of `keys` values.
template <typename Shape, bool kChannels>
struct StagePlan {
  static constexpr int kKeys = Shape::kMostKeys;
  static constexpr int kArrays = kChannels ? 4 : 2;  // k, q, decays, faded
  static constexpr int kRow = kArrays * kKeys + Shape::kColumns + 4;

  float* row;  // the first of the stage

  __device__ float* keys(int array, int i) const { return row + i * kRow + array * kKeys; }
  __device__ float* values(int i) const { return row + i * kRow + kArrays * kKeys; }
  __device__ float* scalars(int i) const { return values(i) + Shape::kColumns; }  // decay, beta
};

// What the threads make of the outputs of a row: as the warps' lanes hold it. The pitch leaves no
// two lanes that add it up the same bank.
template <typename Shape>
constexpr int kPartsOfWarp = kWarpSize + Shape::kWidth;
template <typename Shape>
constexpr int kPartsOfRow = Shape::kWarps * kPartsOfWarp<Shape>;

template <typename Shape, bool kChannels>
size_t shared_bytes(int rows) {
  constexpr size_t kStage = StagePlan<Shape, kChannels>::kRow * sizeof(float);
  return static_cast<size_t>(rows) * (2 * kStage + kPartsOfRow<Shape> * sizeof(float4));
}

// One value, on its way to shared memory.
__device__ inline void copy_4_bytes(float* to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from)
               : "memory");
}

// Four values to shared memory, of which `count` are there: with kVector all or none, and on their
// way.
template <bool kVector>
__device__ void ask_for_four(float* to, const float* from, int count) {
  if constexpr (kVector) {
    copy_16_bytes(shared_address(to), from, count > 0 ? 16 : 0);
  } else {
    *reinterpret_cast<float4*>(to) = load4<false>(from, count);
  }
}

template <typename Shape, bool kChannels, bool kVector>
class Stages {
 public:
  using Plan = StagePlan<Shape, kChannels>;

  __device__ Stages(const DeltaRuleArgs& a, const DeltaThreadCoord& place)
      : a_(a), place_(place), key_(static_cast<int64_t>(place.head / (a.H / a.HK)) * a.DK) {}

  // Asks for the rows [first, first + count).
  __device__ void ask_for(const Plan& stage, int64_t first, int count) const {
    constexpr int kFours = Shape::kMostKeys / 4, kValues = Shape::kColumns / 4;
    const int values = a_.DV - place_.tile;
    for_fours<kFours>(count, [&](int i, int x) {
      const int64_t row = first + i;
      const bool there = x < a_.DK;
      const int64_t at = there ? key_ + x : 0;
      ask_for_four<kVector>(stage.keys(0, i) + x, a_.k + row * a_.k_stride + at, a_.DK - x);
      ask_for_four<kVector>(stage.keys(1, i) + x, a_.q + row * a_.q_stride + at, a_.DK - x);
      if constexpr (kChannels) {
        const int64_t decay = there ? static_cast<int64_t>(place_.head) * a_.DK + x : 0;
        ask_for_four<kVector>(stage.keys(2, i) + x, a_.g + row * a_.g_stride + decay, a_.DK - x);
      }
    });
    for_fours<kValues>(count, [&](int i, int d) {
      const float* from = a_.v + (first + i) * a_.v_stride;
      const int64_t at = static_cast<int64_t>(place_.head) * a_.DV + place_.tile + d;
      ask_for_four<kVector>(stage.values(i) + d, d < values ? from + at : from, values - d);
    });
    if (threadIdx.x < static_cast<unsigned>(count)) {
      const int64_t row = first + threadIdx.x;
      float* const to = stage.scalars(threadIdx.x);
      to[0] = 0;
      if (a_.decay == DeltaDecay::kToken) {
        copy_4_bytes(to, a_.g + row * a_.g_stride + place_.head);
      }
      copy_4_bytes(to + 1, a_.beta + row * a_.beta_stride + place_.head);
    }
    commit_copies();
  }

  // Decays that are there: each thread those that it asked for, so that it need not wait for the
  // others.
  __device__ void prepare(const Plan& stage, int count) const {
    if (threadIdx.x < static_cast<unsigned>(count)) {
      float& decay = stage.scalars(threadIdx.x)[0];
      decay = expf(decay);
    }
    if constexpr (!kChannels) return;
    for_fours<Shape::kMostKeys / 4>(count, [&](int i, int x) {
#pragma unroll
      for (int j = x; j < x + 4; ++j) {
        const float F = expf(stage.keys(2, i)[j]);
        stage.keys(2, i)[j] = F;
        stage.keys(3, i)[j] = __fmul_rn(F, stage.keys(0, i)[j]);
      }
    });
  }

  __device__ DeltaRow row(const Plan& stage, int i) const {
    return {stage.keys(0, i),
            stage.keys(1, i),
            stage.keys(2, i),
            stage.keys(3, i),
            *reinterpret_cast<const float4*>(stage.values(i) + place_.column),
            stage.scalars(i)[0],
            stage.scalars(i)[1]};
  }

 private:
  // Calls visit(row, first of four) for kFours fours of each of so many rows, among all threads.
  template <int kFours, typename Visit>
  __device__ static void for_fours(int count, Visit visit) {
    for (int i = threadIdx.x; i < count * kFours; i += Shape::kThreads) {
      visit(i / kFours, i % kFours * 4);
    }
  }

  const DeltaRuleArgs& a_;
  const DeltaThreadCoord place_;
  const int64_t key_;  // of the head's queries and keys, in a row
};

// Adds up what the threads of each warp made of o, and scales it: `count` rows from `first` on.
template <typename Shape, bool kVector>
__device__ void put_rows(const DeltaRuleArgs& a, const DeltaThreadCoord& place, const float4* parts,
                         int64_t first, int count) {
  constexpr int kFours = Shape::kColumns / 4;
  for (int x = threadIdx.x; x < count * kFours; x += Shape::kThreads) {
    const int i = x / kFours, four = x % kFours;
    const int there = a.DV - place.tile - four * 4;
    if (there <= 0) continue;
    const float4* of_warp = parts + i * kPartsOfRow<Shape> +
                            four / Shape::kWidth * kPartsOfWarp<Shape> + four % Shape::kWidth;
    const auto of_pair = [&](int pair) {
      const float4 one = of_warp[pair * Shape::kWidth];
      if constexpr (Shape::kParts == 2) return one;  // the thread has added its own
      return sum_of(one, of_warp[(pair + Shape::kPairs) * Shape::kWidth]);
    };
    float4 sum = of_pair(0);
#pragma unroll
    for (int pair = 1; pair < Shape::kPairs; ++pair) sum = sum_of(sum, of_pair(pair));
    sum = make_float4(__fmul_rn(a.scale, sum.x), __fmul_rn(a.scale, sum.y),
                      __fmul_rn(a.scale, sum.z), __fmul_rn(a.scale, sum.w));
    const int64_t at = ((first + i) * a.H + place.head) * a.DV + place.tile + four * 4;
    if constexpr (kVector) {
      *reinterpret_cast<float4*>(a.o + at) = sum;
    } else {
      store4<false>(a.o + at, sum, there);
    }
  }
}

// A block: some columns of a head of a sequence, from its first row to its last; of its rows only
// those of chunks.cuh's step_rows() if the others take the chunk form. stage_rows: rows of a stage,
// of which shared memory has two.
template <typename T, typename Shape, bool kChannels, bool kVector>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    delta_rule_kernel(DeltaRuleArgs a, bool last_rows, int tiles, int stage_rows, bool outgrown) {
  using Plan = StagePlan<Shape, kChannels>;
  extern __shared__ float4 shared[];
  float* const floats = reinterpret_cast<float*>(shared);
  const Plan stages[] = {{floats}, {floats + stage_rows * Plan::kRow}};
  float4* const parts = reinterpret_cast<float4*>(floats + 2 * stage_rows * Plan::kRow);
  const DeltaThreadCoord place = delta_coord<Shape>(a.H, tiles);
  const int64_t head = static_cast<int64_t>(a.seqs.slot[place.sequence]) * a.H + place.head;
  T* const S = values_of<T>(a.S) + head * a.DK * a.DV + place.tile + place.column;
  const int columns = a.DV - place.tile - place.column;  // that there are, of the thread's
  wait_for_previous();
  let_next_start();
  const auto [begin, end] = step_rows(a.seqs, last_rows ? a.chunk : 1, place.sequence);
  if (begin == end) return;
  const Stages<Shape, kChannels, kVector> rows(a, place);
  rows.ask_for(stages[0], begin, min(stage_rows, end - begin));
  DeltaState<T, Shape, kVector> state;
  state.load(S, a, place.group, columns, outgrown);
  float4* const own =
      parts + threadIdx.x / kWarpSize * kPartsOfWarp<Shape> + threadIdx.x % kWarpSize;
  int turn = 0, left = a.chunk;  // rows of the chunk
  for (int first = begin; first < end; first += stage_rows, turn ^= 1) {
    const Plan stage = stages[turn];
    const int count = min(stage_rows, end - first);
    wait_for_copies();
    rows.prepare(stage, count);
    __syncthreads();  // all see the rows, and none reads those before them any more
    const int next = min(stage_rows, end - first - stage_rows);
    if (next > 0) rows.ask_for(stages[turn ^ 1], first + stage_rows, next);
#pragma unroll 2
    for (int i = 0; i < count; ++i) {
      const DeltaRow row = rows.row(stage, i);
      own[i * kPartsOfRow<Shape>] = delta_step<kChannels>(state, row, place.group);
      if (--left == 0) {
        state.round();
        left = a.chunk;
      }
    }
    __syncthreads();  // all parts are there
    put_rows<Shape, kVector>(a, place, parts, first, count);
  }
  state.store(S, a, place.group, columns, outgrown);
}

// Depends on the shape and place of the arguments alone.
bool takes_vectors(const DeltaRuleArgs& a) {
  const bool places = aligned(a.q) && aligned(a.k) && aligned(a.v) && aligned(a.o) &&
                      aligned(a.S.data) && (a.decay != DeltaDecay::kChannel || aligned(a.g));
  const bool strides = a.q_stride % 4 == 0 && a.k_stride % 4 == 0 && a.v_stride % 4 == 0 &&
                       (a.decay != DeltaDecay::kChannel || a.g_stride % 4 == 0);
  return places && strides && a.DK % 4 == 0 && a.DV % 4 == 0;
}

// last_rows: what the chunk form has left of each sequence, a row at most, and not all rows.
template <typename T, typename Shape, bool kChannels>
void launch(const DeltaRuleArgs& a, bool last_rows, Stream& stream) {
  const int tiles = ceil_div(a.DV, Shape::kColumns);
  const int rows = last_rows ? 1 : std::min(kMostRows, a.seqs.max_len);
  const int blocks = a.seqs.num_seqs * a.H * tiles;
  const auto kernel = takes_vectors(a) ? delta_rule_kernel<T, Shape, kChannels, true>
                                       : delta_rule_kernel<T, Shape, kChannels, false>;
  const size_t shared = shared_bytes<Shape, kChannels>(rows);
  abort_if_failed(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                       cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(shared_bytes<Shape, kChannels>(kMostRows))),
                  "delta_rule");
  // Where more blocks than run at once stream through states, loads on their way take the cache.
  const bool concurrent =
      rows > 1 || blocks <= Shape::kBlocks * static_cast<CudaStream&>(stream).multiprocessors();
  launch_early(stream, "delta_rule", kernel,
               {.grid = static_cast<unsigned>(blocks),
                .threads = Shape::kThreads,
                .shared = shared,
                .carveout = concurrent ? cudaSharedmemCarveoutMaxShared : 25},
               a, last_rows, tiles, rows,
               outgrows_cache<T>(int64_t{a.seqs.num_seqs} * a.H * a.DK * a.DV));
}

template <typename T, typename Shape>
void launch_with(const DeltaRuleArgs& a, bool last_rows, Stream& stream) {
  return a.decay == DeltaDecay::kChannel ? launch<T, Shape, true>(a, last_rows, stream)
                                         : launch<T, Shape, false>(a, last_rows, stream);
}

}  // namespace
}  // namespace recurve::cuda::sm80
