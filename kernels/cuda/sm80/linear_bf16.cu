// y = x W^T with bf16 weights and fp32 activations on the tensor cores.
//
// An activation is cut into three bf16 values, hi + mid + lo, that add up to it exactly (8 bits of
// the significand each), so W x is three products of bf16 numbers, exact in fp32. The first goes to
// one accumulator, the two small ones to another, where their rounding does not count.
//
// Every launch adds in one order, whatever the rows: K is cut into kWarps ranges, one a warp,
// walked in slabs of 32; the ranges are added from the first to the last. The block's tile (outputs
// x rows) changes with the batch, but an element of it never meets another.
#include <cstdint>

#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/linear_bf16.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
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
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ float upper_half(float x) { return __uint_as_float(__float_as_uint(x) & 0xffff0000u); }
__device__ uint32_t upper_halves(float low, float high) {
  return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
}

// Two activations as a pair of bf16, thrice.
struct Split {
  uint32_t hi, mid, lo;
};
__device__ float rest_of(float x) { return isinf(x) ? 0.0f : x - upper_half(x); }
__device__ Split split(float x0, float x1) {
  const float r0 = rest_of(x0), r1 = rest_of(x1);
  return {upper_halves(x0, x1), upper_halves(r0, r1),
          upper_halves(r0 - upper_half(r0), r1 - upper_half(r1))};
}

// What a lane holds of a slab: for each of its outputs and rows the 8 values of K from 8 (lane % 4)
// on. In which places of the mma they stand does not matter, as long as both sides agree.
template <int kM, int kR>
struct Slab {
  uint4 w[2 * kM];
  float4 x[kR][2];
};

template <int kM, int kR>
struct Accumulator {
  float large[kM][kR][4] = {};
  float small[kM][kR][4] = {};

  __device__ void add(const Slab<kM, kR>& s) {
#pragma unroll
    for (int r = 0; r < kR; ++r) {
      add_half<0>(s, r, split(s.x[r][0].x, s.x[r][0].y), split(s.x[r][0].z, s.x[r][0].w));
      add_half<1>(s, r, split(s.x[r][1].x, s.x[r][1].y), split(s.x[r][1].z, s.x[r][1].w));
    }
  }

 private:
  template <int kHalf>
  __device__ void add_half(const Slab<kM, kR>& s, int r, const Split& b0, const Split& b1) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const uint4& low = s.w[2 * m];
      const uint4& high = s.w[2 * m + 1];
      const uint32_t a0 = kHalf == 0 ? low.x : low.z, a1 = kHalf == 0 ? high.x : high.z;
      const uint32_t a2 = kHalf == 0 ? low.y : low.w, a3 = kHalf == 0 ? high.y : high.w;
      mma(large[m][r], a0, a1, a2, a3, b0.hi, b1.hi);
      mma(small[m][r], a0, a1, a2, a3, b0.mid, b1.mid);
      mma(small[m][r], a0, a1, a2, a3, b0.lo, b1.lo);
    }
  }
};

// A block: kM tiles of outputs, kR tiles of rows, all of K. A lane keeps kAhead slabs on their way.
template <int kM, int kR, int kAhead, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    linear_kernel(LinearArgs args, int row_blocks) {
  constexpr int kN = kM * kTileN, kRows = kR * kTileRows;
  __shared__ float partial[kWarps][kRows][kN];
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int group = lane / 4, quad = lane % 4;
  const int64_t n0 = static_cast<int64_t>(blockIdx.x / row_blocks) * kN;
  const int row0 = blockIdx.x % row_blocks * kRows;
  const int N = static_cast<int>(args.W.N), K = static_cast<int>(args.W.K);

  const uint16_t* w[2 * kM];
#pragma unroll
  for (int j = 0; j < 2 * kM; ++j) {
    const int64_t n = min(n0 + 8 * j + group, static_cast<int64_t>(N) - 1);
    w[j] = static_cast<const uint16_t*>(args.W.data) + n * K + 8 * quad;
  }
  const float* x = args.x + static_cast<int64_t>(row0 + group) * K + 8 * quad;
  const auto load = [&](Slab<kM, kR>& slab, int k, int end) {
    const bool there = k < end && k + 8 * quad < K;
#pragma unroll
    for (int j = 0; j < 2 * kM; ++j) {
      slab.w[j] = there ? load_weights(w[j] + k) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int r = 0; r < kR; ++r) {
      const bool used = there && row0 + group + r * kTileRows < args.rows;
      const auto* from =
          reinterpret_cast<const float4*>(x + static_cast<int64_t>(r) * kTileRows * K + k);
      slab.x[r][0] = used ? __ldg(from) : make_float4(0, 0, 0, 0);
      slab.x[r][1] = used ? __ldg(from + 1) : make_float4(0, 0, 0, 0);
    }
  };

  const int range = ((K + kSlab - 1) / kSlab + kWarps - 1) / kWarps * kSlab;
  const int begin = warp * range, end = min(begin + range, K);
  Accumulator<kM, kR> sum;
  Slab<kM, kR> slabs[kAhead];
#pragma unroll
  for (int s = 0; s < kAhead; ++s) load(slabs[s], begin + s * kSlab, end);
  for (int k = begin; k < end; k += kAhead * kSlab) {
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      if (k + s * kSlab >= end) break;
      sum.add(slabs[s]);
      load(slabs[s], k + (kAhead + s) * kSlab, end);
    }
  }

#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int r = 0; r < kR; ++r) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        partial[warp][r * kTileRows + 2 * quad + c % 2][m * kTileN + group + c / 2 * 8] =
            sum.large[m][r][c] + sum.small[m][r][c];
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kN * kRows; i += kThreads) {
    const int64_t n = n0 + i % kN, row = row0 + i / kN;
    if (n >= N || row >= args.rows) continue;
    float y = partial[0][i / kN][i % kN];
#pragma unroll
    for (int part = 1; part < kWarps; ++part) y += partial[part][i / kN][i % kN];
    if (args.bias != nullptr) y += args.bias[n];
    if (args.residual != nullptr) y += args.residual[row * N + n];
    args.y[row * N + n] = y;
  }
}

// Row blocks of one tile of outputs follow each other, so that the weights come from memory once.
template <int kM, int kR, int kAhead, int kBlocks>
void launch(const LinearArgs& args, cudaStream_t stream) {
  const int row_blocks = (args.rows + kR * kTileRows - 1) / (kR * kTileRows);
  const int64_t blocks = (args.W.N + kM * kTileN - 1) / (kM * kTileN) * row_blocks;
  linear_kernel<kM, kR, kAhead, kBlocks>
      <<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args, row_blocks);
}

}  // namespace

void linear_bf16(const LinearArgs& args, cudaStream_t stream) {
  if (args.rows <= 8) {
    launch<1, 1, 4, 2>(args, stream);
  } else if (args.rows <= 16) {
    launch<1, 2, 3, 2>(args, stream);
  } else {
    launch<2, 4, 2, 1>(args, stream);
  }
}

}  // namespace recurve::cuda::sm80
