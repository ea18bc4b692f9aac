// Products with the matrices of experts that round x to bf16. Where experts have more than a few
// rows each, x is rounded ahead, and blocks bring it and the weights to shared memory in stages;
// each element is summed as in sm80's kernel for few rows, to the same bits.
#include "kernels/cuda/sm80/linear/expert_linear.cuh"
#include "kernels/cuda/sm90/capabilities.h"
#include "kernels/cuda/sm90/linear/expert_rows_launch.cuh"
#include "kernels/cuda/sm90/ops.h"

namespace recurve::cuda::sm90 {
namespace {

using namespace sm80::expert;
using sm80::kGroup;
using sm80::kRowBytes;
using sm80::kTileN;
using sm80::kTileRows;

// A tile is 64 rows x 128 outputs: of a warp 32 x 32.
constexpr int kRows = 64, kTileOutputs = 128, kStages = 4;
constexpr int kWarpTiles = 4, kWarpRows = kWarpTiles * kTileRows, kWarpOutputs = 2 * kTileN;
constexpr int kWarpsOfOutputs = kTileOutputs / kWarpOutputs;
static_assert(kWarpsOfOutputs * (kRows / kWarpRows) == kWarps);

template <typename Weights>
constexpr int kStageBytes = kTileOutputs * Weights::kBytes + kRows * kRowBytes;

// x in bf16: rows of `pitch` values, zeros from K on.
struct RoundedRows {
  const uint16_t* values;
  int pitch;
};

__global__ void __launch_bounds__(kThreads)
    round_kernel(const float* x, int64_t rows, int K, int pitch, uint16_t* to) {
  wait_for_previous();
  let_next_start();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x, fours = pitch / 4;
  const int64_t row = i / fours;
  const int k = static_cast<int>(i % fours) * 4;
  if (row >= rows) return;
  const float4 v = k < K ? *reinterpret_cast<const float4*>(x + row * K + k) : float4{};
  *reinterpret_cast<uint2*>(to + row * pitch + k) =
      make_uint2(round_bf16(v.x, v.y), round_bf16(v.z, v.w));
}

// What a thread brings of each stage: chunks of 16 bytes, each of another row.
template <typename Weights, bool kGates>
class Loader {
 public:
  __device__ Loader(const ExpertLinearArgs& a, const Window& window, const Part& part, int n0,
                    const RoundedRows& x)
      : K_(static_cast<int>(a.W.K)) {
    const auto* data = static_cast<const char*>(a.W.data);
    const int64_t row_bytes = Weights::kScaled ? sm80::packed_groups(K_) * Weights::kBytes : 2 * K_;
#pragma unroll
    for (int i = 0; i < kOfWeights; ++i) {
      const int r = weight_row(i);
      const int64_t n = int64_t{part.expert} * window.N + output_of<kGates>(window, n0, r);
      weights_[i] = data + n * row_bytes + 16 * weight_chunk();
    }
#pragma unroll
    for (int i = 0; i < kOfX; ++i) {
      const int position = part.first + min(x_row(i), part.rows - 1);
      const int64_t row = kGates ? pair_at(a, position) / a.top : position;
      x_[i] = reinterpret_cast<const char*>(x.values + row * x.pitch) + 16 * x_chunk();
      there_[i] = x_row(i) < part.rows;
    }
  }
  __device__ void load(uint32_t stage, int group) const {
    const bool in_row = Weights::kScaled || group * kGroup + 8 * weight_chunk() < K_;
#pragma unroll
    for (int i = 0; i < kOfWeights; ++i) {
      const int r = weight_row(i);
      sm80::copy_16_bytes(
          stage + r * Weights::kBytes + 16 * Weights::weight_place(r, weight_chunk()),
          in_row ? weights_[i] + int64_t{group} * Weights::kBytes : weights_[i], in_row ? 16 : 0);
    }
#pragma unroll
    for (int i = 0; i < kOfX; ++i) {
      const int r = x_row(i);
      sm80::copy_16_bytes(stage + kTileOutputs * Weights::kBytes + r * kRowBytes +
                              16 * Weights::x_place(r, x_chunk()),
                          x_[i] + int64_t{group} * kRowBytes, there_[i] ? 16 : 0);
    }
  }

 private:
  static constexpr int kChunks = Weights::kBytes / 16, kXChunks = kRowBytes / 16;
  static constexpr int kOfWeights = kTileOutputs * kChunks / kThreads;
  static constexpr int kOfX = kRows * kXChunks / kThreads;
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }
  __device__ static int weight_chunk() { return thread() % kChunks; }
  __device__ static int weight_row(int i) { return (thread() + i * kThreads) / kChunks; }
  __device__ static int x_chunk() { return thread() % kXChunks; }
  __device__ static int x_row(int i) { return (thread() + i * kThreads) / kXChunks; }

  const char* weights_[kOfWeights];
  const char* x_[kOfX];
  bool there_[kOfX];
  int K_;
};

// Blocks: parts x tiles of outputs.
template <typename Weights, bool kGates>
__global__ void __launch_bounds__(kThreads, Weights::kScaled ? 1 : 2)
    tiles_kernel(ExpertLinearArgs a, Window window, RoundedRows x) {
  constexpr int kM = 2, kR = kWarpTiles;
  extern __shared__ uint4 memory[];
  wait_for_previous();
  let_next_start();
  const Part part = part_of<kRows>(a, static_cast<int>(blockIdx.x));
  if (part.rows == 0) return;
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int n0 = static_cast<int>(blockIdx.y) * (kGates ? kTileOutputs / 2 : kTileOutputs);
  const int first_output = warp % kWarpsOfOutputs * kWarpOutputs;
  const int first_row = warp / kWarpsOfOutputs * kWarpRows;
  const Loader<Weights, kGates> loader(a, window, part, n0, x);
  const auto weights_of = [&](int j) {
    const int i = first_output + j / 2 * kTileN + j % 2 * 8 + lane / 4;
    return Weights(a.W, int64_t{part.expert} * window.N + output_of<kGates>(window, n0, i));
  };
  const Weights weights[2 * kM] = {weights_of(0), weights_of(1), weights_of(2), weights_of(3)};

  const int groups = (static_cast<int>(a.W.K) + kGroup - 1) / kGroup;
  const int range = (groups + kWarps - 1) / kWarps;
  const auto* const shared = reinterpret_cast<const char*>(memory);
  const uint32_t stages = shared_address(memory);
  const auto load = [&](int group) {
    if (group < groups) loader.load(stages + group % kStages * kStageBytes<Weights>, group);
    sm80::commit_copies();
  };
#pragma unroll
  for (int group = 0; group < kStages - 1; ++group) load(group);

  float total[kM * kR * 4] = {};
  for (int begin = 0; begin < groups; begin += range) {
    Sums<Weights, kM, kR> sums;
    for (int group = begin; group < min(begin + range, groups); ++group) {
      typename Weights::Held held[2 * kM];
#pragma unroll
      for (int j = 0; j < 2 * kM; ++j) weights[j].load_scale(held[j], group);
      sm80::wait_for_all_but<kStages - 2>();
      __syncthreads();
      load(group + kStages - 1);
      const char* const stage = shared + group % kStages * kStageBytes<Weights>;
#pragma unroll
      for (int j = 0; j < 2 * kM; ++j) {
        Weights::read(held[j], stage, first_output + j / 2 * kTileN + j % 2 * 8 + lane / 4);
      }
      sums.add(held, [&](int r, int slab) {
        const int row = first_row + r * kTileRows + lane / 4;
        return sm80::Parts<1>{{Weights::read_x(stage + kTileOutputs * Weights::kBytes, row, slab)}};
      });
    }
    sums.for_each([&, i = 0](int, int, float value) mutable {
      total[i] = begin == 0 ? value : total[i] + value;
      ++i;
    });
  }

  constexpr int kHalf = kR * 4;  // sums of a tile of outputs
  sm80::Accumulator<kM, kR>{}.for_each([&, i = 0](int n, int row, float) mutable {
    const int at = i++;
    row += first_row;
    if (row >= part.rows || (kGates && at >= kHalf)) return;
    const int j = n0 + (kGates ? first_output / 2 : first_output) + n;
    if (j >= window.count) return;
    finish<kGates>(a, window, part.first + row, j, total[at],
                   kGates ? total[at % kHalf + kHalf] : 0);
  });
}

template <typename Weights>
void run_tiles(const ExpertLinearArgs& a, const Window& window, const RoundedRows& x,
               Stream& stream) {
  const bool gates = a.weight == nullptr;
  const auto kernel = gates ? tiles_kernel<Weights, true> : tiles_kernel<Weights, false>;
  constexpr size_t kShared = size_t{kStages} * kStageBytes<Weights>;
  abort_if_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(kShared)),
                  "expert_linear, shared memory");
  const dim3 grid(
      most_parts(a, kRows),
      static_cast<unsigned>(ceil_div(window.count, gates ? kTileOutputs / 2 : kTileOutputs)));
  launch_early(stream, "expert_linear", kernel,
               {.grid = grid, .threads = kThreads, .shared = kShared}, a, window, x);
}

// x in bf16, in the stream's memory for a matrix; without values where it does not fit.
RoundedRows round_rows(const ExpertLinearArgs& a, Stream& stream) {
  const std::span<std::byte> memory = static_cast<CudaStream&>(stream).unpacked();
  const int64_t rows = a.weight == nullptr ? a.rows : int64_t{a.rows} * a.top;
  const int K = static_cast<int>(a.W.K), pitch = ceil_div(K, kGroup) * kGroup;
  if (static_cast<size_t>(rows * pitch) * sizeof(uint16_t) > memory.size()) return {nullptr, pitch};
  auto* const values = reinterpret_cast<uint16_t*>(memory.data());
  launch_early(stream, "expert_linear", round_kernel,
               {.grid = static_cast<unsigned>(ceil_div(rows * (pitch / 4), int64_t{kThreads})),
                .threads = kThreads},
               a.x, rows, K, pitch, values);
  return {values, pitch};
}

// Where experts have eight rows or fewer on average: parts of 16 rows where many have more than
// eight.
template <typename Weights>
void run_few(const ExpertLinearArgs& a, const Window& window, Stream& stream) {
  const bool eight = int64_t{a.rows} * a.top <= int64_t{a.E} * kTileRows / 2;
  const bool done = eight ? expert::launch_rows<Weights, 1>(a, window, stream)
                          : expert::launch_rows<Weights, 2>(a, window, stream);
  if (!done) launch_tiles<Weights, 1, 1>(a, window, stream);
}

}  // namespace

void run(const ExpertLinearArgs& args, Stream& stream) {
  if (!experts_round(args.W)) return sm80::run(args, stream);
  const bool few = has_few_rows(args);
  const RoundedRows x = few || args.rows == 0 ? RoundedRows{} : round_rows(args, stream);
  run_windows(args, stream, [&](const Window& window) {
    with_weights(args.W, [&]<typename Weights>() {
      if (x.values != nullptr) return run_tiles<Weights>(args, window, x, stream);
      if (few) return run_few<Weights>(args, window, stream);
      launch_tiles<Weights, 2, 1>(args, window, stream);
    });
  });
}

}  // namespace recurve::cuda::sm90
