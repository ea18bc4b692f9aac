// y = x W^T with bf16 weights and fp32 activations on the tensor cores.
//
// An activation is cut into three bf16 values, hi + mid + lo, that add up to it exactly (8 bits of
// the significand each), so W x is three products of bf16 numbers, exact in fp32. The first goes to
// one accumulator, the two small ones to another, where their rounding does not count.
//
// Every launch adds in one order, whatever the rows: K is cut into kRanges ranges, each walked
// in slabs of 32; the ranges are added from the first to the last. The tiles (outputs x rows)
// change with the batch, but an element of one never meets another.
#include <cstdint>

#include "kernels/cuda/common/error.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/linear_bf16.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kRanges = 8;                 // of K; and warps of a block
constexpr int kSlab = 32;                  // of K; a lane holds 8 of it
constexpr int kTileN = 16, kTileRows = 8;  // of one mma: outputs and rows

// Weights are read once: they must not push the activations out of L1.
__device__ uint4 load_weights(const uint16_t* from) {
  uint4 w;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
               : "l"(from));
  return w;
}

// d += a b: a (16 outputs, 16 of K), b (16 of K, 8 rows).
__device__ void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                    uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ float upper_half(float x) { return __uint_as_float(__float_as_uint(x) & 0xffff0000u); }
__device__ uint32_t upper_halves(float low, float high) {
  return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
}

// Eight activations, thrice: hi, mid, lo, each as four pairs of bf16.
struct Split {
  uint4 part[3];
};
__device__ float rest_of(float x) { return isinf(x) ? 0.0f : x - upper_half(x); }
__device__ void split_pair(float x0, float x1, uint32_t& hi, uint32_t& mid, uint32_t& lo) {
  const float r0 = rest_of(x0), r1 = rest_of(x1);
  hi = upper_halves(x0, x1);
  mid = upper_halves(r0, r1);
  lo = upper_halves(r0 - upper_half(r0), r1 - upper_half(r1));
}
__device__ Split split(const float4& first, const float4& second) {
  Split s;
  split_pair(first.x, first.y, s.part[0].x, s.part[1].x, s.part[2].x);
  split_pair(first.z, first.w, s.part[0].y, s.part[1].y, s.part[2].y);
  split_pair(second.x, second.y, s.part[0].z, s.part[1].z, s.part[2].z);
  split_pair(second.z, second.w, s.part[0].w, s.part[1].w, s.part[2].w);
  return s;
}

// The sums of a warp's tile. Of a slab a lane holds, for each of its outputs and rows, the 8 values
// of K from 8 (lane % 4) on. In which places of the mma they stand does not matter, as long as both
// sides agree.
template <int kM, int kR>
struct Accumulator {
  float large[kM][kR][4] = {};
  float small[kM][kR][4] = {};

  // One slab of row tile r. w: two outputs of each tile.
  __device__ void add(const uint4 (&w)[2 * kM], int r, const Split& x) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int part = 0; part < 3; ++part) add_part(w, r, x, half, part);
    }
  }

  // Calls visit(output, row, sum) for each element of the tile that this lane has.
  template <typename Visit>
  __device__ void for_each(Visit visit) const {
    const int group = threadIdx.x % kWarpSize / 4, quad = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int r = 0; r < kR; ++r) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          visit(m * kTileN + group + c / 2 * 8, r * kTileRows + 2 * quad + c % 2,
                large[m][r][c] + small[m][r][c]);
        }
      }
    }
  }

 private:
  // half: of each lane's 8 values.
  __device__ void add_part(const uint4 (&w)[2 * kM], int r, const Split& x, int half, int part) {
    const uint4& b = x.part[part];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const uint4 &low = w[2 * m], &high = w[2 * m + 1];
      float(&sum)[4] = part == 0 ? large[m][r] : small[m][r];
      if (half == 0) {
        mma(sum, low.x, high.x, low.y, high.y, b.x, b.y);
      } else {
        mma(sum, low.z, high.z, low.w, high.w, b.z, b.w);
      }
    }
  }
};

// K of each range.
__device__ int range_of(int K) { return ((K + kSlab - 1) / kSlab + kRanges - 1) / kRanges * kSlab; }

// The ranges' sums are added up: y gets bias and residual.
__device__ void finish(const LinearArgs& args, int64_t n, int64_t row, float y) {
  if (n >= args.W.N || row >= args.rows) return;
  if (args.bias != nullptr) y += args.bias[n];
  if (args.residual != nullptr) y += args.residual[row * args.W.N + n];
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
  x[0] = there ? __ldg(from) : make_float4(0, 0, 0, 0);
  x[1] = there ? __ldg(from + 1) : make_float4(0, 0, 0, 0);
}

// For few rows. A block: kM tiles of outputs, kR tiles of rows, all of K, a range a warp. A lane
// has kAhead slabs on their way.
template <int kM, int kR, int kAhead, int kBlocks>
__global__ void __launch_bounds__(kRanges* kWarpSize, kBlocks)
    few_rows_kernel(LinearArgs args, int row_blocks) {
  constexpr int kN = kM * kTileN, kRows = kR * kTileRows;
  __shared__ float partial[kRanges][kRows][kN];
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int64_t n0 = static_cast<int64_t>(blockIdx.x / row_blocks) * kN;
  const int row0 = blockIdx.x % row_blocks * kRows, K = static_cast<int>(args.W.K);

  struct Slab {
    uint4 w[2 * kM];
    float4 x[kR][2];
  } slabs[kAhead];
  const Weights<kM> weights(args.W, n0);
  const auto load = [&](Slab& slab, int k, int end) {
    weights.load(slab.w, k, end);
#pragma unroll
    for (int r = 0; r < kR; ++r) {
      load_row(slab.x[r], args, row0 + r * kTileRows + lane / 4, k + 8 * (lane % 4), end);
    }
  };
  const int begin = warp * range_of(K), end = min(begin + range_of(K), K);
  Accumulator<kM, kR> sum;
#pragma unroll
  for (int s = 0; s < kAhead; ++s) load(slabs[s], begin + s * kSlab, end);
  for (int k = begin; k < end; k += kAhead * kSlab) {
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      if (k + s * kSlab >= end) break;
#pragma unroll
      for (int r = 0; r < kR; ++r) {
        sum.add(slabs[s].w, r, split(slabs[s].x[r][0], slabs[s].x[r][1]));
      }
      load(slabs[s], k + (kAhead + s) * kSlab, end);
    }
  }

  sum.for_each([&](int n, int row, float value) { partial[warp][row][n] = value; });
  __syncthreads();
  for (int i = threadIdx.x; i < kN * kRows; i += kRanges * kWarpSize) {
    float y = partial[0][i / kN][i % kN];
#pragma unroll
    for (int range = 1; range < kRanges; ++range) y += partial[range][i / kN][i % kN];
    finish(args, n0 + i % kN, row0 + i / kN, y);
  }
}

// For many rows. A block: kRanges warps in kGroups groups, each of which walks as many of the
// ranges one after the other; a group's warps stand side by side along the outputs and share the
// activations, which they cut once and pass on in shared memory, a slab at a time.
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

template <int kM, int kR, int kGroups, int kBlocks>
__global__ void __launch_bounds__(kRanges* kWarpSize, kBlocks)
    many_rows_kernel(LinearArgs args, int row_blocks) {
  using Shape = ManyRows<kM, kR, kGroups>;
  extern __shared__ uint4 memory[];
  Shape& shared = *reinterpret_cast<Shape*>(memory);
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int group = warp / Shape::kWide, column = warp % Shape::kWide;
  const int64_t n0 = static_cast<int64_t>(blockIdx.x / row_blocks) * Shape::kN;
  const int row0 = blockIdx.x % row_blocks * Shape::kRows;
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
  load_x(0);
  weights.load(w[0], begin, K);
  weights.load(w[1], begin + kSlab, K);
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
      finish(args, n0 + column * kM * kTileN + n, row0 + row, y);
    }
    ++i;
  });
}

// Row blocks of one tile of outputs follow each other, so that the weights come from memory once.
struct Blocks {
  int row_blocks;
  unsigned count;
};
Blocks blocks_of(const LinearArgs& args, int n, int rows) {
  const int row_blocks = (args.rows + rows - 1) / rows;
  return {row_blocks, static_cast<unsigned>((args.W.N + n - 1) / n * row_blocks)};
}

template <int kM, int kR, int kAhead, int kBlocks>
void few_rows(const LinearArgs& args, cudaStream_t stream) {
  const Blocks blocks = blocks_of(args, kM * kTileN, kR * kTileRows);
  few_rows_kernel<kM, kR, kAhead, kBlocks>
      <<<blocks.count, kRanges * kWarpSize, 0, stream>>>(args, blocks.row_blocks);
}

template <int kM, int kR, int kGroups, int kBlocks>
void many_rows(const LinearArgs& args, cudaStream_t stream) {
  using Shape = ManyRows<kM, kR, kGroups>;
  const auto kernel = many_rows_kernel<kM, kR, kGroups, kBlocks>;
  abort_if_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(sizeof(Shape))),
                  "linear, shared memory");
  const Blocks blocks = blocks_of(args, Shape::kN, Shape::kRows);
  kernel<<<blocks.count, kRanges * kWarpSize, sizeof(Shape), stream>>>(args, blocks.row_blocks);
}

}  // namespace

// The tiles that were fastest on an H200 for the shapes of xLSTM-7B.
void linear_bf16(const LinearArgs& args, cudaStream_t stream) {
  if (args.rows <= 8) return few_rows<1, 1, 3, 3>(args, stream);
  if (args.rows <= 16) return few_rows<2, 2, 2, 2>(args, stream);
  many_rows<2, 2, 4, 2>(args, stream);
}

}  // namespace recurve::cuda::sm80
