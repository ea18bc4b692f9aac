// What the tiles of the delta rule need that does not know the state: a block has the keys and the
// queries of a tile, and each of its warpgroups some of the value heads that share them.
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/quick_silu.cuh"
#include "kernels/cuda/sm80/tf32.cuh"
#include "kernels/cuda/sm90/matrix/delta_tiles.h"
#include "kernels/cuda/sm90/matrix/tile_scan.cuh"

namespace recurve::cuda::sm90 {
namespace {

using sm80::LeftTile;
using sm80::RowBlock;
using sm80::TileSum;
using tile_scan::kGroupThreads;
using tile_scan::Lane;
using tile_scan::swizzled_at;
static_assert(kDeltaRows == sm80::kTileRows);

constexpr int kMostGroups = 2;
constexpr int kPitch = kDeltaRows + 4;  // no two lanes that read rows share a bank
constexpr int kPart = 16;               // rows of a triangle that is inverted row by row
// A head that fades by more than this in a row has faded: sums of more would be less exact.
constexpr float kMostDecay = 150;  // exponents of 2
constexpr float kLog2OfE = 1.44269504f;

// Of one value head.
struct alignas(16) HeadShared {
  DeltaTile out;
  float T[kDeltaRows][kPitch];  // A, then (1 + A)^-1
  // Sums of log decays in powers of 2, in two parts, as differences of large ones are wanted.
  float G[kDeltaRows], fine[kDeltaRows], beta[kDeltaRows];
  int spoilt;  // the first row with what is no number, or infinite
};
template <int kDK>
struct alignas(1024) Shared {
  uint16_t keys[2][kDeltaRows * kDK];  // keys, then queries
  HeadShared heads[kMostGroups];
};

// As in tile_scan.cuh, with barriers that the compiler can count: several blocks share them.
__device__ void sync_group(int group) {
  if (group == 0) {
    asm volatile("bar.sync 1, %0;" ::"n"(kGroupThreads) : "memory");
  } else {
    asm volatile("bar.sync 2, %0;" ::"n"(kGroupThreads) : "memory");
  }
}

// Keys and queries of a tile in bf16; zeros where there are no rows. Both are asked for before
// either is waited for.
template <int kDK>
__device__ void round_rows(const DeltaRuleArgs& a, const RowBlock& rows, int key_head,
                           Shared<kDK>& s) {
  constexpr int kPieces = kDK / 8;
  const float* const from[2] = {a.k + rows.first * a.k_stride + int64_t{key_head} * kDK,
                                a.q + rows.first * a.q_stride + int64_t{key_head} * kDK};
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kDeltaRows * kPieces;
       i += static_cast<int>(blockDim.x)) {
    const int t = i / kPieces, piece = i % kPieces;
    const int64_t row = min(t, rows.L - 1);
#pragma unroll
    for (int array = 0; array < 2; ++array) {
      const int stride = array == 0 ? a.k_stride : a.q_stride;
      const auto* here = reinterpret_cast<const float4*>(from[array] + row * stride + 8 * piece);
      const float4 low = here[0], high = here[1];
      const bool there = t < rows.L;
      const auto two = [&](float x, float y) { return there ? round_bf16(x, y) : 0; };
      *reinterpret_cast<uint4*>(s.keys[array] + swizzled_at(t, piece)) = make_uint4(
          two(low.x, low.y), two(low.z, low.w), two(high.x, high.y), two(high.z, high.w));
    }
  }
}

// A warp: sums of the decays of a head, and what rows have of the state before and behind them. A
// lane has two rows.
__device__ void sum_decays(const DeltaRuleArgs& a, const RowBlock& rows, int head, HeadShared& s) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, t = 2 * lane;
  double g[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const bool there = t + i < rows.L;
    const int64_t row = rows.first + t + i;
    float decay = there && a.decay == DeltaDecay::kToken ? a.g[row * a.g_stride + head] : 0;
    decay *= kLog2OfE;
    if (decay < -kMostDecay) decay = -kMostDecay;  // not max(): what is no number stays
    g[i] = decay;
    s.beta[t + i] = there ? a.beta[row * a.beta_stride + head] : 0;
  }
  double sum = g[0] + g[1];
#pragma unroll
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const double before = __shfl_up_sync(0xffffffffu, sum, offset);
    if (lane >= offset) sum += before;
  }
  const double all = __shfl_sync(0xffffffffu, sum, kWarpSize - 1);
  const double before = __shfl_up_sync(0xffffffffu, sum, 1);
  double G = lane == 0 ? 0 : before;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    G += g[i];
    const auto coarse = static_cast<float>(G);
    const float e = exp2f(coarse);
    s.G[t + i] = coarse;
    s.fine[t + i] = static_cast<float>(G - coarse);
    s.out.e[t + i] = e;
    s.out.read[t + i] = a.scale * e;
    s.out.w[t + i] = exp2f(static_cast<float>(all - G));
  }
  if (lane == 0) {
    s.out.F = exp2f(static_cast<float>(all));
    s.spoilt = kDeltaRows;
  }
}

// A and P from the products of keys, and of queries with keys.
__device__ void fade_products(const float (&kk)[32], const float (&qk)[32], float scale,
                              const Lane& lane, HeadShared& s) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = lane.row() + 8 * half;
    const float G = s.G[t], fine = s.fine[t], beta = s.beta[t];
#pragma unroll
    for (int eight = 0; eight < kDeltaRows / 8; ++eight) {
      const int j = 8 * eight + 2 * lane.q;
      float A[2], P[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float decay = sm80::power_of_2((G - s.G[j + i]) + (fine - s.fine[j + i]));
        const int at = 4 * eight + 2 * half + i;
        // What a later row holds stays out.
        const float a = j + i <= t ? beta * kk[at] * decay : 0;
        if (!isfinite(a)) atomicMin(&s.spoilt, t);
        A[i] = j + i < t ? a : 0;
        P[i] = j + i <= t ? scale * qk[at] * decay : 0;
      }
      *reinterpret_cast<float2*>(&s.T[t][j]) = make_float2(A[0], A[1]);
      *reinterpret_cast<uint32_t*>(s.out.P + swizzled_at(t, eight) + 2 * lane.q) =
          round_bf16(P[0], P[1]);
    }
  }
}

// (1 + A)^-1 of kPart rows in the place of A, by forward substitution: a warp, half of whose lanes
// have a column each.
__device__ void invert_part(float (*A)[kPitch], int first) {
  const int j = static_cast<int>(threadIdx.x) % kPart;
  float x[kPart];
#pragma unroll
  for (int t = 0; t < kPart; ++t) {
    float sums[4] = {};
#pragma unroll
    for (int i = 0; i < t; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(&A[first + t][first + i]);
      sums[0] = fmaf(four.x, x[i], sums[0]);
      if (i + 1 < t) sums[1] = fmaf(four.y, x[i + 1], sums[1]);
      if (i + 2 < t) sums[2] = fmaf(four.z, x[i + 2], sums[2]);
      if (i + 3 < t) sums[3] = fmaf(four.w, x[i + 3], sums[3]);
    }
    x[t] = (t == j ? 1.0f : 0.0f) - ((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }
  __syncwarp();
  if (threadIdx.x % kWarpSize >= kPart) return;
#pragma unroll
  for (int t = 0; t < kPart; ++t) A[first + t][first + j] = x[t];
}

// Tiles (16, 8) of a product of kSteps times 8 terms, exact to 2^-23: rows from `left` on, columns
// from `right` on. A warp.
template <int kDown, int kAside, int kSteps>
__device__ void multiply_part(TileSum (&sums)[kDown][kAside], const float (*left)[kPitch],
                              const float (*right)[kPitch]) {
  const int g = threadIdx.x % kWarpSize / 4, q = threadIdx.x % 4;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int x = 8 * step + q;
#pragma unroll
    for (int n = 0; n < kAside; ++n) {
      const sm80::RightTile b{
          {sm80::cut_finite(right[x][8 * n + g]), sm80::cut_finite(right[x + 4][8 * n + g])}};
#pragma unroll
      for (int m = 0; m < kDown; ++m) {
        const float(*rows)[kPitch] = left + 16 * m + g;
        const LeftTile a{{sm80::cut_finite(rows[0][x]), sm80::cut_finite(rows[8][x]),
                          sm80::cut_finite(rows[0][x + 4]), sm80::cut_finite(rows[8][x + 4])}};
        sums[m][n].add(a, b);
      }
    }
  }
}
template <int kDown, int kAside>
__device__ void put_part(const TileSum (&sums)[kDown][kAside], float sign, float (*to)[kPitch]) {
  const int g = threadIdx.x % kWarpSize / 4, q = threadIdx.x % 4;
#pragma unroll
  for (int m = 0; m < kDown; ++m) {
#pragma unroll
    for (int n = 0; n < kAside; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<float2*>(&to[16 * m + 8 * half + g][8 * n + 2 * q]) =
            make_float2(sign * sums[m][n].value(2 * half), sign * sums[m][n].value(2 * half + 1));
      }
    }
  }
}
// Where a part of the triangle begins.
__device__ float (*part_at(HeadShared& s, int row, int column))[kPitch] {
  return reinterpret_cast<float(*)[kPitch]>(&s.T[row][column]);
}

// (1 + A)^-1 in the place of A, a warpgroup: with A = (B 0; C D), it is (B' 0; -D' C B' D').
__device__ void invert(HeadShared& s, int group) {
  const int warp = static_cast<int>(threadIdx.x) % kGroupThreads / kWarpSize;
  invert_part(s.T, kPart * warp);
  sync_group(group);
  if (warp % 2 == 0) {
    const int c = kPart * warp, r = c + kPart;
    TileSum between[1][2], all[1][2];
    multiply_part<1, 2, 2>(between, part_at(s, r, c), part_at(s, c, c));
    __syncwarp();
    put_part(between, 1, part_at(s, r, c));
    __syncwarp();
    multiply_part<1, 2, 2>(all, part_at(s, r, r), part_at(s, r, c));
    __syncwarp();
    put_part(all, -1, part_at(s, r, c));
  }
  sync_group(group);
  constexpr int kHalf = kDeltaRows / 2;
  const int c = 8 * warp;
  TileSum between[2][1], all[2][1];
  multiply_part<2, 1, kHalf / 8>(between, part_at(s, kHalf, 0), part_at(s, 0, c));
  sync_group(group);  // all have read C
  put_part(between, 1, part_at(s, kHalf, c));
  __syncwarp();
  multiply_part<2, 1, kHalf / 8>(all, part_at(s, kHalf, kHalf), part_at(s, kHalf, c));
  __syncwarp();
  put_part(all, -1, part_at(s, kHalf, c));
  sync_group(group);
}

// Rows that are spoilt take no part in the inverse, in which they would meet zeros.
__device__ void leave_out_spoilt(HeadShared& s, int group) {
  const int first = s.spoilt;
  if (first == kDeltaRows) return;
  for (int i = static_cast<int>(threadIdx.x) % kGroupThreads; i < (kDeltaRows - first) * kDeltaRows;
       i += kGroupThreads) {
    s.T[first + i / kDeltaRows][i % kDeltaRows] = 0;
  }
  sync_group(group);
}

__device__ void put_inverse(HeadShared& s) {
  constexpr int kPieces = kDeltaRows / 8;
  const int spoilt = s.spoilt;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x) % kGroupThreads; i < kDeltaRows * kPieces;
       i += kGroupThreads) {
    const int t = i / kPieces, j = i % kPieces * 8;
    float M[8];
#pragma unroll
    for (int x = 0; x < 8; ++x) {
      M[x] = j + x > t ? 0 : t >= spoilt ? NAN : s.T[t][j + x] * s.beta[j + x];
    }
    *reinterpret_cast<uint4*>(s.out.M + swizzled_at(t, j / 8)) =
        make_uint4(round_bf16(M[0], M[1]), round_bf16(M[2], M[3]), round_bf16(M[4], M[5]),
                   round_bf16(M[6], M[7]));
  }
}

// What a block does: a head of keys of a tile.
template <int kDK>
__device__ void weigh_tile(const DeltaTileArgs& args, Shared<kDK>& shared) {
  const DeltaRuleArgs& a = args.rule;
  const int number = static_cast<int>(blockIdx.x) / a.HK;
  const int key_head = static_cast<int>(blockIdx.x) % a.HK;
  const RowBlock rows =
      sm80::tile_rows(a.seqs, a.chunk, number / args.tiles, args.first_tile + number % args.tiles);
  if (rows.L == 0) return;
  round_rows(a, rows, key_head, shared);
  show_to_copies();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(args.keys + int64_t{blockIdx.x} * 2 * kDeltaRows * kDK, shared.keys,
               sizeof(shared.keys));
    commit_stores();
  }
  const Lane lane;
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int groups = static_cast<int>(blockDim.x) / kGroupThreads, each = a.H / a.HK;
  HeadShared& s = shared.heads[group];
  for (int i = group; i < each; i += groups) {
    const int head = key_head * each + i;
    float kk[32], qk[32];
    begin_products();
    tile_scan::multiply_all<kDK>(kk, shared.keys[0], shared.keys[0]);
    tile_scan::multiply_all<kDK>(qk, shared.keys[1], shared.keys[0]);
    commit_products();
    if (lane.warp == 0) sum_decays(a, rows, head, s);
    sync_group(group);
    wait_for_products<0>();
    tile_scan::settle(kk);
    tile_scan::settle(qk);
    fade_products(kk, qk, a.scale, lane, s);
    sync_group(group);
    leave_out_spoilt(s, group);
    invert(s, group);
    put_inverse(s);
    show_to_copies();
    sync_group(group);
    if (threadIdx.x % kGroupThreads == 0) {
      bulk_store(args.weights + int64_t{number} * a.H + head, &s.out, sizeof(s.out));
      commit_stores();
      wait_until_read();
    }
    sync_group(group);
  }
  if (threadIdx.x % kGroupThreads == 0) wait_for_stores();
}

// Tiles behind the first ones of their sequences are computed concurrently with the scan before
// them in the stream. They need nothing of it, and lie where the scan before that one had its
// tiles: it ended before this one let them start. What follows waits for all that is ahead, so the
// last block ends last.
template <int kDK>
__global__ void __launch_bounds__(kMostGroups* kGroupThreads, 2)
    weights_kernel(const __grid_constant__ DeltaTileArgs args) {
  extern __shared__ __align__(1024) std::byte weights_memory[];
  let_next_start();
  if (args.first_tile == 0) wait_for_previous();
  weigh_tile(args, *reinterpret_cast<Shared<kDK>*>(weights_memory));
  if (args.first_tile > 0 && blockIdx.x == gridDim.x - 1) wait_for_previous();
}

template <int kDK>
void launch(const DeltaTileArgs& args, Stream& stream) {
  const auto kernel = weights_kernel<kDK>;
  const int groups = std::min(args.rule.H / args.rule.HK, kMostGroups);
  const size_t bytes =
      sizeof(Shared<kDK>) - sizeof(HeadShared) * static_cast<size_t>(kMostGroups - groups);
  use(stream);
  abort_if_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(sizeof(Shared<kDK>))),
                  "delta_rule, weights of tiles");
  launch_early(stream, "delta_rule, weights of tiles", kernel,
               {.grid = static_cast<unsigned>(args.rule.seqs.num_seqs * args.tiles * args.rule.HK),
                .threads = static_cast<unsigned>(groups * kGroupThreads),
                .shared = bytes},
               args);
}

}  // namespace

void weigh_delta_tiles(const DeltaTileArgs& args, Stream& stream) {
  if (args.rule.DK == 64) return launch<64>(args, stream);
  if (args.rule.DK == 128) return launch<128>(args, stream);
  launch<256>(args, stream);
}

}  // namespace recurve::cuda::sm90
