#pragma once
// Products of rows with the matrices of their experts. A part is up to so many rows of one expert;
// how many parts there are only the device knows, so a grid has a column of blocks for each that
// there may be, and those of no part end. A block has a tile of outputs of a part; each of its
// warps has an eighth of K, and the eighths are added in their order. An element is summed in this
// one order, whatever the rows of its tile.
//
// kParts: x in three parts is multiplied exactly (split_bf16.cuh), in one it is rounded to bf16.
// Products of packed weights are summed before the scale of their 64 columns. What is to be added
// to rows of y goes to the stream's scratch first, some outputs at a time, as each row adds its
// experts in their order.
#include <algorithm>
#include <cstdint>

#include "kernels/ceil_div.h"
#include "kernels/check.h"
#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/scratch.h"
#include "kernels/cuda/sm80/capabilities.h"
#include "kernels/cuda/sm80/copies.cuh"
#include "kernels/cuda/sm80/linear/expert_weights.cuh"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/rows/activate.cuh"

namespace recurve::cuda::sm80::expert {

constexpr int kWarps = 8, kThreads = kWarps * kWarpSize;
constexpr unsigned kAll = 0xffffffffu;

// Rows of an expert that follow each other.
struct Part {
  int expert, first, rows;  // first: the position; no rows: there is no such part
};

// Which part a block of kThreads has. All threads.
template <int kRows>
__device__ Part part_of(const ExpertLinearArgs& a, int number) {
  if (a.begin == nullptr) {
    const int first = number * kRows;
    return {0, first, max(0, min(kRows, a.rows - first))};
  }
  __shared__ int totals[kWarps];
  __shared__ Part found;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize;
  const int step = (a.E + kThreads - 1) / kThreads, e0 = thread * step, e1 = min(e0 + step, a.E);
  const auto parts_of = [&](int e) { return (a.begin[e + 1] - a.begin[e] + kRows - 1) / kRows; };
  int mine = 0;
  for (int e = e0; e < e1; ++e) mine += parts_of(e);
  int end = mine;  // of the parts up to this thread's
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const int other = __shfl_up_sync(kAll, end, offset);
    if (lane >= offset) end += other;
  }
  if (lane == kWarpSize - 1) totals[thread / kWarpSize] = end;
  if (thread == 0) found = {0, 0, 0};
  __syncthreads();
  for (int warp = 0; warp < thread / kWarpSize; ++warp) end += totals[warp];
  if (end - mine <= number && number < end) {
    int e = e0, at = number - (end - mine);
    for (int parts = parts_of(e); at >= parts; parts = parts_of(e)) {
      at -= parts;
      ++e;
    }
    const int first = a.begin[e] + at * kRows;
    found = {e, first, min(kRows, a.begin[e + 1] - first)};
  }
  __syncthreads();
  return found;
}

// Outputs of a launch: all, or of those that are added to y some from `first` on, which go to
// (pairs, count).
struct Window {
  int first, count;
  float* products;
  int N;  // of all there are of an expert
};

__device__ inline int pair_at(const ExpertLinearArgs& a, int position) {
  return a.pair == nullptr ? position : a.pair[position];
}
template <bool kGates>
__device__ const float* row_at(const ExpertLinearArgs& a, int position) {
  const int row = kGates ? pair_at(a, position) / a.top : position;
  return a.x + static_cast<int64_t>(row) * a.W.K;
}

// An output of a position, of kGates the j-th of a half. up: the same output of the other half.
template <bool kGates>
__device__ void finish(const ExpertLinearArgs& a, const Window& window, int position, int j,
                       float z, float up) {
  if constexpr (kGates) {
    a.y[static_cast<int64_t>(position) * window.count + j] = silu(z) * up;
  } else {
    window.products[static_cast<int64_t>(pair_at(a, position)) * window.count + j] = z;
  }
}

// Which row of an expert's matrix is the i-th of a tile whose outputs begin at n0: of gates, 16 of
// each half take turns. Of those beyond the last nothing is written.
template <bool kGates>
__device__ int output_of(const Window& window, int n0, int i) {
  if (!kGates) return window.first + min(n0 + i, window.count - 1);
  const int j = i / (2 * kTileN) * kTileN + i % kTileN;
  return min(n0 + j, window.count - 1) + i / kTileN % 2 * window.count;
}

// Adds eight values of a lane's row of x to the sum of its row.
__device__ inline void add_ones(float (&total)[4], const uint4& x) {
  constexpr uint32_t kOnes = 0x3f803f80u;
  mma(total, kOnes, kOnes, kOnes, kOnes, x.x, x.y);
  mma(total, kOnes, kOnes, kOnes, kOnes, x.z, x.w);
}

// A warp's sums over some groups of 64 columns, of kM tiles of outputs and kR tiles of rows.
template <typename Weights, int kM, int kR>
class Sums {
 public:
  using Held = typename Weights::Held;
  using Group = Accumulator<kM, kR>;

  // One group, whose weights are held. parts_of(row tile, slab): the x of the lane's row.
  template <typename PartsOf>
  __device__ void add(const Held (&held)[2 * kM], PartsOf parts_of) {
    if constexpr (!Weights::kScaled) {
      multiply(sum_, held, parts_of);
    } else {
      Group group;
      multiply(group, held, parts_of);
      add_scaled(group, held, [&](int r) {
        float total[4] = {};
#pragma unroll
        for (int slab = 0; slab < 2; ++slab) {
          const auto parts = parts_of(r, slab);
#pragma unroll
          for (const uint4& part : parts.part) add_ones(total, part);
        }
        return make_float2(total[0], total[1]);
      });
    }
  }

  // The two steps of scaled weights: products of a group before its scales, and these.
  // totals_of(row tile): add_ones() of the x of the two rows that the lane has sums of.
  template <typename PartsOf>
  __device__ static void multiply(Group& group, const Held (&held)[2 * kM], PartsOf parts_of) {
    uint4 w[2][2 * kM];
#pragma unroll
    for (int slab = 0; slab < 2; ++slab) {
#pragma unroll
      for (int j = 0; j < 2 * kM; ++j) w[slab][j] = Weights::slab(held[j], slab);
    }
#pragma unroll
    for (int r = 0; r < kR; ++r) {
#pragma unroll
      for (int slab = 0; slab < 2; ++slab) group.add(w[slab], r, parts_of(r, slab));
    }
  }
  template <typename TotalsOf>
  __device__ void add_scaled(const Group& group, const Held (&held)[2 * kM], TotalsOf totals_of) {
#pragma unroll
    for (int r = 0; r < kR; ++r) {
      float2 totals = {};
      if constexpr (Weights::kHasMinimum) totals = totals_of(r);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const Held& h = held[2 * m + c / 2];
          float& to = sum_.large[m][r][c];
          to = fmaf(Weights::scale(h), group.large[m][r][c] + group.small[m][r][c], to);
          if constexpr (Weights::kHasMinimum) {
            to = fmaf(Weights::minimum(h), c % 2 == 0 ? totals.x : totals.y, to);
          }
        }
      }
    }
  }

  template <typename Visit>
  __device__ void for_each(Visit visit) const {
    sum_.for_each(visit);
  }

 private:
  Group sum_;
};

// Eight values of a row of x, cut or rounded.
template <int kParts>
__device__ Parts<kParts> parts_of_row(const float4& first, const float4& second) {
  if constexpr (kParts == 1) {
    return round_to_parts(first, second);
  } else {
    return split(first, second);
  }
}

constexpr int kBlocksOfMultiprocessor = 8, kMostTiles = 8;
constexpr int kTiles = 2, kOutputs = kTiles * kTileN;  // of a block at a time
template <bool kGates>
constexpr int kStep = kGates ? kOutputs / 2 : kOutputs;  // outputs of a window that these are

// The lanes' x of the groups under way, each read by the lane that asked for it, and the sums of
// the tile that is finished and of the one before.
template <int kR>
struct Shared {
  float4 x[kWarps][2][kR][4][kWarpSize];
  float partial[2][kWarps][kR * kTileRows][kOutputs];
};

// Blocks: parts of 8 kR rows x several tiles of outputs, one after the other. Two groups of weights
// and of x are always under way, of whichever tile.
template <typename Weights, int kR, bool kGates, int kParts>
__global__ void __launch_bounds__(kThreads, kR == 1 ? 2 : 1)
    experts_kernel(ExpertLinearArgs a, Window window, int tiles_of_block) {
  constexpr int kRows = kR * kTileRows, kHeld = 2 * kTiles;
  extern __shared__ uint4 memory[];
  Shared<kR>& shared = *reinterpret_cast<Shared<kR>*>(memory);
  wait_for_previous();
  let_next_start();
  const Part part = part_of<kRows>(a, static_cast<int>(blockIdx.x));
  if (part.rows == 0) return;
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int n0 = static_cast<int>(blockIdx.y) * tiles_of_block * kStep<kGates>;
  const int rest = (window.count - n0 + kStep<kGates> - 1) / kStep<kGates>;
  const int tiles = min(tiles_of_block, rest), K = static_cast<int>(a.W.K);
  const int groups = (K + kGroup - 1) / kGroup, range = (groups + kWarps - 1) / kWarps;
  const int begin = min(warp * range, groups), end = min(begin + range, groups);
  const float* rows[kR];
#pragma unroll
  for (int r = 0; r < kR; ++r) {
    const int row = r * kTileRows + lane / 4;
    rows[r] = row < part.rows ? row_at<kGates>(a, part.first + row) : nullptr;
  }

  typename Weights::Held held[2][kHeld];
  int next_tile = 0, next_group = begin;  // to be asked for
  const auto load = [&](int turn) {
    if (next_tile < tiles && begin < end) {
#pragma unroll
      for (int j = 0; j < kHeld; ++j) {
        const int n = output_of<kGates>(window, n0 + next_tile * kStep<kGates>,
                                        j / 2 * kTileN + j % 2 * 8 + lane / 4);
        Weights(a.W, static_cast<int64_t>(part.expert) * window.N + n)
            .load(held[turn][j], next_group);
      }
#pragma unroll
      for (int r = 0; r < kR; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int k = next_group * kGroup + Weights::column(i);
          const bool there = rows[r] != nullptr && k < K;
          copy_16_bytes(shared_address(&shared.x[warp][turn][r][i][lane]),
                        there ? rows[r] + k : a.x, there ? 16 : 0);
        }
      }
      if (++next_group == end) {
        next_group = begin;
        ++next_tile;
      }
    }
    commit_copies();
  };
  Sums<Weights, kTiles, kR> sums;
  int tile = 0;  // whose sums these are
  const auto finish_tile = [&] {
    auto& partial = shared.partial[tile % 2];
    sums.for_each([&](int n, int row, float value) { partial[warp][row][n] = value; });
    sums = {};
    __syncthreads();
    const auto sum_of = [&](int row, int n) {
      float z = partial[0][row][n];
#pragma unroll
      for (int i = 1; i < kWarps; ++i) z += partial[i][row][n];
      return z;
    };
    const int first = n0 + tile * kStep<kGates>;
    for (int i = static_cast<int>(threadIdx.x); i < part.rows * kStep<kGates>; i += kThreads) {
      const int row = i / kStep<kGates>, j = i % kStep<kGates>;
      if (first + j >= window.count) continue;
      const float up = kGates ? sum_of(row, kTileN + j) : 0;
      finish<kGates>(a, window, part.first + row, first + j, sum_of(row, j), up);
    }
    ++tile;
  };

  load(0);
  load(1);
  int group = begin;
  while (tile < tiles) {
#pragma unroll
    for (int turn = 0; turn < 2; ++turn) {
      if (tile == tiles) break;
      if (begin < end) {
        wait_for_all_but<1>();
        sums.add(held[turn], [&](int r, int slab) {
          const auto& x = shared.x[warp][turn][r];
          return parts_of_row<kParts>(x[2 * slab][lane], x[2 * slab + 1][lane]);
        });
        load(turn);
      }
      if (++group < end) continue;
      group = begin;
      finish_tile();
    }
  }
}

// y[r] += weight[p] products[p], of some outputs: blocks of rows x outputs.
static __global__ void __launch_bounds__(kThreads) add_kernel(ExpertLinearArgs a, Window window) {
  wait_for_previous();
  let_next_start();
  const int j = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (j >= window.count) return;
  const int64_t row = blockIdx.x;
  float* const y = a.y + row * window.N + window.first + j;
  float sum = *y;
  for (int64_t p = row * a.top; p < (row + 1) * a.top; ++p) {
    sum = fmaf(a.weight[p], window.products[p * window.count + j], sum);
  }
  *y = sum;
}

// Parts of so many rows that there may be at most.
inline unsigned most_parts(const ExpertLinearArgs& a, int rows) {
  const int64_t pairs = int64_t{a.rows} * a.top;
  if (a.begin == nullptr) return static_cast<unsigned>(ceil_div(pairs, int64_t{rows}));
  return static_cast<unsigned>(std::min<int64_t>(a.E, pairs) + pairs / rows);
}

// Of so many rows, with so many tiles of outputs for a block that the card has a few blocks for
// each multiprocessor.
template <typename Weights, int kR, int kParts>
void launch_tiles(const ExpertLinearArgs& a, const Window& window, Stream& stream) {
  const bool gates = a.weight == nullptr;
  const auto kernel = gates ? experts_kernel<Weights, kR, true, kParts>
                            : experts_kernel<Weights, kR, false, kParts>;
  abort_if_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(sizeof(Shared<kR>))),
                  "expert_linear, shared memory");
  const int tiles = ceil_div(window.count, gates ? kStep<true> : kStep<false>);
  const unsigned parts = most_parts(a, kR * kTileRows);
  const int blocks = kBlocksOfMultiprocessor * static_cast<CudaStream&>(stream).multiprocessors();
  const int most = static_cast<int>(std::min<int64_t>(int64_t{parts} * tiles / blocks, kMostTiles));
  const int tiles_of_block = std::max(1, most);
  const dim3 grid(parts, static_cast<unsigned>(ceil_div(tiles, tiles_of_block)));
  launch_early(stream, "expert_linear", kernel,
               {.grid = grid, .threads = kThreads, .shared = sizeof(Shared<kR>)}, a, window,
               tiles_of_block);
}

// Defined with sm80's op, which has the kernels for it.
void run_any(const ExpertLinearArgs& a, const Window& window, Stream& stream);

// Calls visit.operator()<Weights>() with how the matrix is read.
template <typename Visit>
void with_weights(const Matrix& W, Visit visit) {
  if (W.format == &kInt8Weights) return visit.template operator()<ExpertInt8>();
  if (W.format == &kInt4Weights) return visit.template operator()<ExpertInt4>();
  visit.template operator()<ExpertBf16>();
}

// Whether experts have so few rows each that parts of one tile are enough.
inline bool has_few_rows(const ExpertLinearArgs& a) {
  return int64_t{a.rows} * a.top <= int64_t{a.E} * kTileRows;
}

// run_window(window) computes the outputs of a window.
template <typename RunWindow>
void run_windows(const ExpertLinearArgs& args, Stream& stream, RunWindow run_window) {
  if (args.rows == 0 || args.outputs() == 0) return;
  const int N = static_cast<int>(args.outputs());
  if (args.weight == nullptr) return run_window(Window{0, N / 2, nullptr, N});
  const std::span<std::byte> scratch = static_cast<CudaStream&>(stream).scratch();
  const int64_t pairs = int64_t{args.rows} * args.top;
  const int most = static_cast<int>(
      std::min<int64_t>(N, static_cast<int64_t>(scratch.size() / sizeof(float)) / pairs));
  CHECK(most > 0);
  auto* const products = reinterpret_cast<float*>(scratch.data());
  for (int first = 0; first < N; first += most) {
    const Window window{first, std::min(most, N - first), products, N};
    run_window(window);
    launch_early(stream, "expert_linear", add_kernel,
                 {.grid = dim3(static_cast<unsigned>(args.rows),
                               static_cast<unsigned>(ceil_div(window.count, kThreads))),
                  .threads = kThreads},
                 args, window);
  }
}

}  // namespace recurve::cuda::sm80::expert
