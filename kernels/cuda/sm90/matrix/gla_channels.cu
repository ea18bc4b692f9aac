// Secondary chunking (Yang et al. 2023, sec. 4.3): a tile's rows are four parts of kPartRows. With
// G the sums of log decays from a row to the next, of each channel, P between rows of two parts is
// made on the tensor cores, of queries times the decay since their part began, and keys times the
// decay to their part's end; within a part, exponent by exponent in fp32. So no exponent is ever
// positive.
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/quick_silu.cuh"
#include "kernels/cuda/sm80/tile.cuh"
#include "kernels/cuda/sm90/matrix/gla_channels.h"
#include "kernels/cuda/sm90/matrix/tile_scan.cuh"

namespace recurve::cuda::sm90 {
namespace {

using sm80::kTileRows;
using sm80::RowBlock;
using sm80::TileChunkArgs;

constexpr int kThreads = 256;
constexpr int kPartRows = 16, kParts = kTileRows / kPartRows;
constexpr int kSlice = 64;          // channels at a time
constexpr int kPitch = kSlice + 4;  // of floats: no two lanes share a bank
constexpr int kPairPitch = kTileRows + 4;
// A channel that fades by more than this in a row has faded: sums of more would be less exact.
constexpr float kMostDecay = 144;  // exponents of 2
constexpr float kLog2OfE = 1.44269504f;
static_assert(kParts * kSlice == kThreads && kPartRows * kPartRows == kThreads);

struct Shared {
  // Queries times the decay since their part began, since the part before it did, and since the
  // one before that did; keys times the decay to the end of their part.
  uint16_t q_bf16[kParts - 1][kTileRows * kSlice], k_bf16[kTileRows * kSlice];
  float q[kTileRows * kPitch], k[kTileRows * kPitch];
  float sums[kTileRows * kPitch];  // of log decays since the part began; first the decays
  float of_part[kParts][kSlice];   // all of a part's
  float P[kTileRows * kPairPitch];
};

__device__ uint16_t one_bf16(float value) {
  return static_cast<uint16_t>(round_bf16(value, 0) & 0xffff);
}

// A slice of the tile's rows, zeros where there are none. Log decays are in powers of 2.
__device__ void load_slice(const GlaArgs& g, const RowBlock& rows, int head, int x0, Shared& s) {
  const int64_t channel = static_cast<int64_t>(head) * g.DK + x0;
  const int x = static_cast<int>(threadIdx.x) % (kSlice / 4) * 4;
#pragma unroll
  for (int t = static_cast<int>(threadIdx.x) / (kSlice / 4); t < kTileRows;
       t += kThreads / (kSlice / 4)) {
    float4 q = make_float4(0, 0, 0, 0), k = q, decay = q;
    if (t < rows.L) {
      const int64_t row = rows.first + t;
      q = *reinterpret_cast<const float4*>(g.q + row * g.q_stride + channel + x);
      k = *reinterpret_cast<const float4*>(g.k + row * g.k_stride + channel + x);
      decay = *reinterpret_cast<const float4*>(g.g + row * g.g_stride + channel + x);
      if (g.i != nullptr) {
        const float weight = expf(g.i[row * g.g_stride + head]);
        k = make_float4(weight * k.x, weight * k.y, weight * k.z, weight * k.w);
      }
      const auto in_powers_of_2 = [](float& value) {
        value *= kLog2OfE;
        if (value < -kMostDecay) value = -kMostDecay;  // not max(): what is no number stays
      };
      in_powers_of_2(decay.x);
      in_powers_of_2(decay.y);
      in_powers_of_2(decay.z);
      in_powers_of_2(decay.w);
    }
    *reinterpret_cast<float4*>(s.q + t * kPitch + x) = q;
    *reinterpret_cast<float4*>(s.k + t * kPitch + x) = k;
    *reinterpret_cast<float4*>(s.sums + t * kPitch + x) = decay;
  }
}

// A thread: a channel of a part. Queries and keys times their decays, here and for the scan.
__device__ void weigh(const TileChunkArgs& a, int64_t at, int x0, Shared& s) {
  const int x = static_cast<int>(threadIdx.x) % kSlice, part = threadIdx.x / kSlice;
  const int t0 = part * kPartRows;
  float decay[kPartRows];
  float sum = 0;
#pragma unroll
  for (int t = 0; t < kPartRows; ++t) {
    decay[t] = s.sums[(t0 + t) * kPitch + x];
    sum += decay[t];
    s.sums[(t0 + t) * kPitch + x] = sum;
  }
  s.of_part[part][x] = sum;
  __syncthreads();
  float before = 0, behind = 0, all = 0;  // of the other parts
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const float one = s.of_part[i][x];
    all += one;
    if (i < part) before += one;
    if (i > part) behind += one;
  }
  const float from_start = sm80::power_of_2(before), to_end = sm80::power_of_2(behind);
  const float one_back = part >= 1 ? sm80::power_of_2(s.of_part[part - 1][x]) : 0;
  const float two_back = part >= 2 ? one_back * sm80::power_of_2(s.of_part[part - 2][x]) : 0;
  if (part == 0) a.scratch.F[at * a.DK + x0 + x] = sm80::power_of_2(all);
  uint16_t* const q_out = a.scratch.q + at * kTileRows * a.DK;
  uint16_t* const k_out = a.scratch.k + at * kTileRows * a.DK;
  float since = 0, left = 0;
#pragma unroll
  for (int t = 0; t < kPartRows; ++t) {
    since += decay[t];
    const int row = t0 + t;
    const float q = s.q[row * kPitch + x] * sm80::power_of_2(since);
    const int there = sm80::piece_at(row, x / 8, kSlice) + x % 8;
    s.q_bf16[0][there] = one_bf16(q);
    s.q_bf16[1][there] = one_bf16(q * one_back);
    s.q_bf16[2][there] = one_bf16(q * two_back);
    q_out[tile_scan::swizzled_at(row, (x0 + x) / 8) + x % 8] = one_bf16(q * from_start);
  }
#pragma unroll
  for (int t = kPartRows - 1; t >= 0; --t) {
    const int row = t0 + t;
    const float k = s.k[row * kPitch + x] * sm80::power_of_2(left);
    left += decay[t];
    s.k_bf16[sm80::piece_at(row, x / 8, kSlice) + x % 8] = one_bf16(k);
    k_out[tile_scan::swizzled_at(row, (x0 + x) / 8) + x % 8] = one_bf16(k * to_end);
  }
}

// The later and the earlier part of a warp's products between parts: of warps 0 to 5.
struct PartPair {
  int later, earlier;
  __device__ explicit PartPair(int warp)
      : later(warp < 1   ? 1
              : warp < 3 ? 2
                         : 3),
        earlier(warp < 1   ? 0
                : warp < 3 ? warp - 1
                           : warp - 3) {}
};
constexpr int kPartPairs = kParts * (kParts - 1) / 2;

__device__ void multiply_parts(const Shared& s, const PartPair& parts, float (&sums)[2][4]) {
  const sm80::TileMatrix<kSlice> Q(s.q_bf16[parts.later - parts.earlier - 1]), K(s.k_bf16);
#pragma unroll
  for (int x = 0; x < kSlice; x += 16) {
    uint32_t left[4], right[4];
    Q.load_left(left, parts.later * kPartRows, x);
    K.load_right(right, parts.earlier * kPartRows, x);
    sm80::multiply_bf16(sums[0], left, right[0], right[1]);
    sm80::multiply_bf16(sums[1], left, right[2], right[3]);
  }
}

// q_t . k_j with the decays between the rows.
__device__ float multiply_rows(const Shared& s, int t, int j) {
  float sum = 0;
#pragma unroll 4
  for (int x = 0; x < kSlice; x += 4) {
    const auto four = [x](const float* of, int row) {
      return *reinterpret_cast<const float4*>(of + row * kPitch + x);
    };
    const float4 q = four(s.q, t), k = four(s.k, j);
    const float4 to = four(s.sums, t), from = four(s.sums, j);
    sum = fmaf(q.x * k.x, sm80::power_of_2(to.x - from.x), sum);
    sum = fmaf(q.y * k.y, sm80::power_of_2(to.y - from.y), sum);
    sum = fmaf(q.z * k.z, sm80::power_of_2(to.z - from.z), sum);
    sum = fmaf(q.w * k.w, sm80::power_of_2(to.w - from.w), sum);
  }
  return sum;
}

// The products within parts of a thread (t, j): of a part where j <= t, or else of the next one
// with both counted from its end, for parts 0 and 1 and for 2 and 3; and one row with itself, of
// parts 1 and 3.
struct OwnProducts {
  float of_two[kParts / 2] = {}, itself = 0;
  int t, j;
  bool lower;
  __device__ OwnProducts()
      : t(static_cast<int>(threadIdx.x) / kPartRows),
        j(static_cast<int>(threadIdx.x) % kPartRows),
        lower(j <= t) {}
  __device__ int row(int two) const {
    return 2 * two * kPartRows + (lower ? t : 2 * kPartRows - 1 - t);
  }
  __device__ int earlier_row(int two) const {
    return 2 * two * kPartRows + (lower ? j : 2 * kPartRows - 1 - j);
  }
  __device__ bool has_itself() const { return threadIdx.x < 2 * kPartRows; }
  __device__ int own_row() const { return (2 * t + 1) * kPartRows + j; }

  __device__ void add(const Shared& s) {
#pragma unroll
    for (int two = 0; two < kParts / 2; ++two) {
      of_two[two] += multiply_rows(s, row(two), earlier_row(two));
    }
    if (has_itself()) itself += multiply_rows(s, own_row(), own_row());
  }
  __device__ void leave(float* P) const {
#pragma unroll
    for (int two = 0; two < kParts / 2; ++two) {
      P[row(two) * kPairPitch + earlier_row(two)] = of_two[two];
    }
    if (has_itself()) P[own_row() * kPairPitch + own_row()] = itself;
  }
};

// A block: a head of a tile.
__global__ void __launch_bounds__(kThreads, 2) channels_kernel(TileChunkArgs a, GlaArgs g) {
  extern __shared__ __align__(1024) std::byte channels_memory[];
  Shared& s = *reinterpret_cast<Shared*>(channels_memory);
  let_next_start();
  wait_for_previous();
  const int number = static_cast<int>(blockIdx.x) / a.H, head = static_cast<int>(blockIdx.x) % a.H;
  const RowBlock rows =
      sm80::tile_rows(a.seqs, a.chunk, number / a.tiles, a.first_tile + number % a.tiles);
  if (rows.L == 0) return;
  const int64_t at = blockIdx.x;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const PartPair parts(warp);
  float sums[2][4] = {};
  OwnProducts own;
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kPairPitch; i += kThreads) s.P[i] = 0;
  for (int x0 = 0; x0 < a.DK; x0 += kSlice) {
    __syncthreads();  // all are done with the slice before
    load_slice(g, rows, head, x0, s);
    __syncthreads();
    weigh(a, at, x0, s);
    __syncthreads();
    if (warp < kPartPairs) multiply_parts(s, parts, sums);
    own.add(s);
  }
  own.leave(s.P);
  const int lane = threadIdx.x % kWarpSize;
  if (warp < kPartPairs) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int t = parts.later * kPartRows + lane / 4 + i / 2 * 8;
        const int j = parts.earlier * kPartRows + 8 * n + lane % 4 * 2 + i % 2;
        s.P[t * kPairPitch + j] = sums[n][i];
      }
    }
  }
  __syncthreads();
  // As the warpgroup that multiplies P with values has it in its registers: see PairPieces.
  for (int i = static_cast<int>(threadIdx.x); i < tile_scan::kPairPieces; i += kThreads) {
    const int thread = i % tile_scan::kGroupThreads, step = i / tile_scan::kGroupThreads;
    const int t = thread / kWarpSize * 16 + thread % kWarpSize / 4;
    const int j = 16 * step + thread % 4 * 2;
    const auto two = [&](int row, int column) {
      const float2 pair = *reinterpret_cast<const float2*>(s.P + row * kPairPitch + column);
      return round_bf16(g.scale * pair.x, g.scale * pair.y);
    };
    a.scratch.pairs[at * tile_scan::kPairPieces + i] =
        make_uint4(two(t, j), two(t + 8, j), two(t, j + 8), two(t + 8, j + 8));
  }
}

}  // namespace

void weigh_channels(const TileChunkArgs& args, const GlaArgs& gla, Stream& stream) {
  const auto kernel = channels_kernel;
  abort_if_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(sizeof(Shared))),
                  "tiles, shared memory");
  launch_early(stream, "tiles, channels", kernel,
               {.grid = static_cast<unsigned>(args.seqs.num_seqs * args.tiles * args.H),
                .threads = kThreads,
                .shared = sizeof(Shared)},
               args, gla);
}

}  // namespace recurve::cuda::sm90
