// y = x W^T with bf16 weights and fp32 activations on the tensor cores, by exact products: see
// split_bf16.cuh.
//
// Every launch adds in one order, whatever the rows: K is cut into kRanges ranges, each walked
// in slabs of 32; the ranges are added from the first to the last. The tiles (outputs x rows)
// change with the batch, but an element of one never meets another.
//
// Layers of a group stand side by side in one grid.
#include <algorithm>
#include <cstdint>

#include "kernels/ceil_div.h"
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/linear/linear_bf16.h"
#include "kernels/cuda/sm80/rows/activate.cuh"
#include "kernels/cuda/sm80/split_bf16.cuh"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kRanges = 8;  // of K; and warps of a block

// Layers of one launch. kMost: 1 is a layer alone, which has no activation.
constexpr int kMostLayers = 4;
template <int kMost>
struct Group {
  LinearArgs layers[kMost];
  int first_block[kMost];
  int row_blocks[kMost];  // of a tile of outputs
  int count;
};

// Which layer of the group a block has, and which of its blocks it is.
struct LayerBlock {
  int layer, block;
};
template <int kMost>
__device__ LayerBlock layer_block(const Group<kMost>& group) {
  const int block = static_cast<int>(blockIdx.x);
  if constexpr (kMost == 1) return {0, block};
  int layer = 0;
#pragma unroll
  for (int i = 1; i < kMost; ++i) {
    if (i < group.count && block >= group.first_block[i]) layer = i;
  }
  return {layer, block - group.first_block[layer]};
}

// K of each range.
__device__ int range_of(int K) { return ((K + kSlab - 1) / kSlab + kRanges - 1) / kRanges * kSlab; }

// The ranges' sums are added up: y gets bias, and residual or activation.
template <bool kActivates>
__device__ void finish(const LinearArgs& args, int64_t n, int64_t row, float y) {
  if (n >= args.W.N || row >= args.rows) return;
  if (args.bias != nullptr) y += args.bias[n];
  if (args.residual != nullptr) y += args.residual[row * args.W.N + n];
  if constexpr (kActivates) y = activate_output(args.activation, y);
  args.y[row * args.W.N + n] = y;
}

// The weights of a warp's outputs: where a lane reads its 8 values of each slab.
template <int kM>
struct Weights {
  const uint16_t* from[2 * kM];
  int K;

  __device__ Weights(const Matrix& W, int64_t n0) : K(static_cast<int>(W.K)) {
    const int group = threadIdx.x % kWarpSize / 4, quad = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < 2 * kM; ++j) {
      const int64_t n = min(n0 + 8 * j + group, W.N - 1);  // what is beyond is not written
      from[j] = static_cast<const uint16_t*>(W.data) + n * K + 8 * quad;
    }
  }
  // The slab at k; zeros from `end` and from K on.
  __device__ void load(uint4 (&w)[2 * kM], int k, int end) const {
    const bool there = k < end && k + 8 * static_cast<int>(threadIdx.x % 4) < K;
#pragma unroll
    for (int j = 0; j < 2 * kM; ++j) {
      w[j] = there ? load_weights(from[j] + k) : make_uint4(0, 0, 0, 0);
    }
  }
};

// The 8 activations of `row` from k on; zeros from `end` and from K on and where there is no row.
__device__ void load_row(float4 (&x)[2], const LinearArgs& args, int row, int k, int end) {
  const bool there = k < end && k < args.W.K && row < args.rows;
  const auto* from =
      reinterpret_cast<const float4*>(args.x + static_cast<int64_t>(row) * args.W.K + k);
  x[0] = there ? from[0] : make_float4(0, 0, 0, 0);
  x[1] = there ? from[1] : make_float4(0, 0, 0, 0);
}

// The kernel for few rows. A block has kM tiles of outputs, kR tiles of rows and all of K, of which
// each warp has a range. A lane has kAhead slabs on their way.
template <int kM, int kR, int kAhead, int kBlocks, int kMost>
__global__ void __launch_bounds__(kRanges* kWarpSize, kBlocks)
    few_rows_kernel(const __grid_constant__ Group<kMost> group) {
  constexpr int kN = kM * kTileN, kRows = kR * kTileRows;
  __shared__ float partial[kRanges][kRows][kN];
  if constexpr (kMost > 1) let_next_start();
  const auto [layer, block] = layer_block(group);
  const LinearArgs& args = group.layers[layer];
  const int row_blocks = group.row_blocks[layer];
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int64_t n0 = static_cast<int64_t>(block / row_blocks) * kN;
  const int row0 = block % row_blocks * kRows, K = static_cast<int>(args.W.K);

  struct Slab {
    uint4 w[2 * kM];
    float4 x[kR][2];
  } slabs[kAhead];
  const Weights<kM> weights(args.W, n0);
  const auto load_x = [&](Slab& slab, int k, int end) {
#pragma unroll
    for (int r = 0; r < kR; ++r) {
      load_row(slab.x[r], args, row0 + r * kTileRows + lane / 4, k + 8 * (lane % 4), end);
    }
  };
  const int begin = warp * range_of(K), end = min(begin + range_of(K), K);
  Accumulator<kM, kR> sum;
#pragma unroll
  for (int s = 0; s < kAhead; ++s) weights.load(slabs[s].w, begin + s * kSlab, end);
  wait_for_previous();
#pragma unroll
  for (int s = 0; s < kAhead; ++s) load_x(slabs[s], begin + s * kSlab, end);
  for (int k = begin; k < end; k += kAhead * kSlab) {
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      if (k + s * kSlab >= end) break;
#pragma unroll
      for (int r = 0; r < kR; ++r) {
        sum.add(slabs[s].w, r, split(slabs[s].x[r][0], slabs[s].x[r][1]));
      }
      weights.load(slabs[s].w, k + (kAhead + s) * kSlab, end);
      load_x(slabs[s], k + (kAhead + s) * kSlab, end);
    }
  }

  sum.for_each([&](int n, int row, float value) { partial[warp][row][n] = value; });
  __syncthreads();
  for (int i = threadIdx.x; i < kN * kRows; i += kRanges * kWarpSize) {
    float y = partial[0][i / kN][i % kN];
#pragma unroll
    for (int range = 1; range < kRanges; ++range) y += partial[range][i / kN][i % kN];
    finish<(kMost > 1)>(args, n0 + i % kN, row0 + i / kN, y);
  }
}

// The kernel for many rows. A block has kRanges warps in kGroups groups, each of which walks as
// many of the ranges one after the other; a group's warps stand side by side along the outputs and
// share the activations, which they cut once and pass on in shared memory, a slab at a time.
template <int kM, int kR, int kGroups>
struct ManyRows {
  static constexpr int kWide = kRanges / kGroups;  // warps of a group
  static constexpr int kN = kWide * kM * kTileN, kRows = kR * kTileRows;
  static constexpr int kTurns = kRanges / kGroups;  // ranges of a group
  // A group alone adds its ranges up as they come; of several groups each range waits for its turn.
  static constexpr int kSums = kGroups == 1 ? 1 : kRanges;
  static constexpr int kUnits = kR / kWide + (kR % kWide != 0);  // row tiles that a warp cuts

  uint4 x[2][kGroups][kR][3][kWarpSize];
  float sums[kSums][kM * kR * 4][kWide * kWarpSize];  // as the lanes hold them
};

template <int kM, int kR, int kGroups, int kBlocks, int kMost>
__global__ void __launch_bounds__(kRanges* kWarpSize, kBlocks)
    many_rows_kernel(const __grid_constant__ Group<kMost> layers) {
  using Shape = ManyRows<kM, kR, kGroups>;
  extern __shared__ uint4 memory[];
  Shape& shared = *reinterpret_cast<Shape*>(memory);
  if constexpr (kMost > 1) let_next_start();
  const auto [layer, block] = layer_block(layers);
  const LinearArgs& args = layers.layers[layer];
  const int row_blocks = layers.row_blocks[layer];
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int group = warp / Shape::kWide, column = warp % Shape::kWide;
  const int64_t n0 = static_cast<int64_t>(block / row_blocks) * Shape::kN;
  const int row0 = block % row_blocks * Shape::kRows;
  const int K = static_cast<int>(args.W.K), range = range_of(K), slabs = range / kSlab;

  // The group's slabs are numbered through all its ranges: its K is one piece.
  const int begin = group * Shape::kTurns * range;
  const Weights<kM> weights(args.W, n0 + column * kM * kTileN);
  float4 x[Shape::kUnits][2];
  const auto load_x = [&](int slab) {
#pragma unroll
    for (int u = 0; u < Shape::kUnits; ++u) {
      const int tile = u * Shape::kWide + column;
      if (tile < kR) {
        load_row(x[u], args, row0 + tile * kTileRows + lane / 4,
                 begin + slab * kSlab + 8 * (lane % 4), K);
      }
    }
  };
  const auto cut_x = [&](int slab) {
#pragma unroll
    for (int u = 0; u < Shape::kUnits; ++u) {
      const int tile = u * Shape::kWide + column;
      if (tile >= kR) break;
      const Split parts = split(x[u][0], x[u][1]);
#pragma unroll
      for (int part = 0; part < 3; ++part) {
        shared.x[slab % 2][group][tile][part][lane] = parts.part[part];
      }
    }
  };

  const int mine = column * kWarpSize + lane;
  uint4 w[2][2 * kM];
  weights.load(w[0], begin, K);
  weights.load(w[1], begin + kSlab, K);
  wait_for_previous();
  load_x(0);
  cut_x(0);
  load_x(1);
  __syncthreads();
  int slab = 0;
  for (int turn = 0; turn < Shape::kTurns; ++turn) {
    Accumulator<kM, kR> sum;
    const auto add = [&](uint4(&weight)[2 * kM]) {
#pragma unroll
      for (int r = 0; r < kR; ++r) {
        Split parts;
#pragma unroll
        for (int part = 0; part < 3; ++part) {
          parts.part[part] = shared.x[slab % 2][group][r][part][lane];
        }
        sum.add(weight, r, parts);
      }
      weights.load(weight, begin + (slab + 2) * kSlab, K);
      cut_x(slab + 1);
      load_x(slab + 2);
      __syncthreads();
      ++slab;
    };
    const int last = (turn + 1) * slabs;
    while (slab < last) {
      if (slab % 2 == 0) {
        add(w[0]);
      } else {
        add(w[1]);
      }
    }
    int i = 0;
    float(&sums)[kM * kR * 4][Shape::kWide * kWarpSize] =
        shared.sums[kGroups == 1 ? 0 : group * Shape::kTurns + turn];
    sum.for_each([&](int, int, float value) {
      sums[i][mine] = kGroups == 1 && turn > 0 ? sums[i][mine] + value : value;
      ++i;
    });
  }
  __syncthreads();

  // Each group finishes its share of the lanes' elements.
  Accumulator<kM, kR>{}.for_each([&, i = 0](int n, int row, float) mutable {
    if (i % kGroups == group) {
      float y = shared.sums[0][i][mine];
#pragma unroll
      for (int r = 1; r < Shape::kSums; ++r) y += shared.sums[r][i][mine];
      finish<(kMost > 1)>(args, n0 + column * kM * kTileN + n, row0 + row, y);
    }
    ++i;
  });
}

// Row blocks of one tile of outputs follow each other, so that the weights come from memory once.
template <int kMost>
struct Grid {
  Group<kMost> group;
  unsigned blocks;
};
template <int kMost>
Grid<kMost> grid_of(std::span<const LinearArgs> layers, int n, int rows) {
  Grid<kMost> grid{};
  for (const LinearArgs& layer : layers) {
    const int at = grid.group.count++, row_blocks = ceil_div(layer.rows, rows);
    grid.group.layers[at] = layer;
    grid.group.first_block[at] = static_cast<int>(grid.blocks);
    grid.group.row_blocks[at] = row_blocks;
    grid.blocks += static_cast<unsigned>(ceil_div(layer.W.N, n) * row_blocks);
  }
  return grid;
}

// A group starts early and lets the next kernel start. A layer alone does neither: between two
// large layers it would let the second load its weights while the first still does.
template <int kMost>
void launch(void (*kernel)(Group<kMost>), const Grid<kMost>& grid, size_t shared, Stream& stream) {
  constexpr int kThreads = kRanges * kWarpSize;
  if constexpr (kMost == 1) {
    kernel<<<grid.blocks, kThreads, shared, use(stream)>>>(grid.group);
    expect_launched("linear");
  } else {
    launch_early(stream, "linear", kernel,
                 {.grid = grid.blocks, .threads = kThreads, .shared = shared}, grid.group);
  }
}

template <int kMost, int kM, int kR, int kAhead, int kBlocks>
void few_rows(std::span<const LinearArgs> layers, Stream& stream) {
  launch(few_rows_kernel<kM, kR, kAhead, kBlocks, kMost>,
         grid_of<kMost>(layers, kM * kTileN, kR * kTileRows), 0, stream);
}

template <int kMost, int kM, int kR, int kGroups, int kBlocks>
void many_rows(std::span<const LinearArgs> layers, Stream& stream) {
  using Shape = ManyRows<kM, kR, kGroups>;
  const auto kernel = many_rows_kernel<kM, kR, kGroups, kBlocks, kMost>;
  abort_if_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(sizeof(Shape))),
                  "linear, shared memory");
  launch(kernel, grid_of<kMost>(layers, Shape::kN, Shape::kRows), sizeof(Shape), stream);
}

// The tiles that were fastest on an H200 for the shapes of xLSTM-7B.
template <int kMost>
void run_layers(std::span<const LinearArgs> layers, Stream& stream) {
  if (layers[0].rows <= 8) return few_rows<kMost, 1, 1, 3, 3>(layers, stream);
  if (layers[0].rows <= 16) return few_rows<kMost, 2, 2, 2, 2>(layers, stream);
  many_rows<kMost, 2, 2, 4, 2>(layers, stream);
}

}  // namespace

void linear_bf16(std::span<const LinearArgs> layers, Stream& stream) {
  for (size_t first = 0; first < layers.size(); first += kMostLayers) {
    const auto some = layers.subspan(first, std::min<size_t>(kMostLayers, layers.size() - first));
    if (some.size() == 1 && some[0].activation == Activation::kIdentity) {
      run_layers<1>(some, stream);
    } else {
      run_layers<kMostLayers>(some, stream);
    }
  }
}

}  // namespace recurve::cuda::sm80
