// The outputs of all tiles at once, from what the passes before have left.
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/quick_silu.cuh"
#include "kernels/cuda/sm80/rows/activate.cuh"
#include "kernels/cuda/sm80/tile.cuh"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kColumns = 64;  // of a head that a block makes at a time
constexpr int kWarpRows = 16, kWarpColumns = 32;
constexpr int kThreads = kTileRows / kWarpRows * (kColumns / kWarpColumns) * kWarpSize;
constexpr int kSteps = kTileRows / 16;        // of products over rows
constexpr int kProductPitch = kTileRows + 8;  // no two lanes share a bank

// What a block needs of a head's columns.
template <int kDK>
struct Stage {
  uint16_t S[kColumns * kDK];
  float v[kTileRows * kValuePitch<kColumns>];
  TileWeights weights;
  float z[kDK];
};
template <int kDK>
struct Shared {
  Stage<kDK> stage;
  uint16_t q[kTileRows * kDK];
  float products[kTileRows * kProductPitch];
};

// Some columns of a head of a tile.
struct BlockCoord {
  int head, d0;
};

template <int kDK>
__device__ void load_columns(const TileChunkArgs& a, Stage<kDK>& stage, int number, int in_part,
                             const RowBlock& rows, const BlockCoord& at) {
  const int64_t head = static_cast<int64_t>(number) * a.H + at.head;
  const int64_t state = static_cast<int64_t>(in_part) * a.H + at.head;
  copy_all<sizeof(stage.S), kThreads>(stage.S, a.scratch.S + (state * a.DV + at.d0) * kDK);
  copy_all<sizeof(TileWeights), kThreads>(&stage.weights, a.scratch.weights + head);
  if (a.z != nullptr) copy_all<sizeof(stage.z), kThreads>(stage.z, a.scratch.z + head * kDK);
  copy_values<kColumns, kThreads>(stage.v, a.v, rows, static_cast<int64_t>(at.head) * a.DV + at.d0);
}

__device__ void copy_products(float* to, const float* from) {
  constexpr int kFours = kTileRows / 4, kTurn = kThreads / kFours;
  const int first = static_cast<int>(threadIdx.x) / kFours, j = threadIdx.x % kFours * 4;
  const uint32_t there = shared_address(to + first * kProductPitch + j);
#pragma unroll
  for (int i = 0; i < kTileRows / kTurn; ++i) {
    copy_16_bytes(there + i * kTurn * kProductPitch * sizeof(float),
                  from + (first + i * kTurn) * kTileRows + j);
  }
}

// Where a warp stands, and a lane in its tiles.
struct Lane {
  int t0, d0;  // the warp's first row, and its first column in the block
  int g, q;
  __device__ Lane()
      : t0(static_cast<int>(threadIdx.x) / kWarpSize % (kTileRows / kWarpRows) * kWarpRows),
        d0(static_cast<int>(threadIdx.x) / kWarpSize / (kTileRows / kWarpRows) * kWarpColumns),
        g(threadIdx.x % kWarpSize / 4),
        q(threadIdx.x % 4) {}
  // The row of value i, where a lane has two rows with two columns each, in 8 columns.
  __device__ int row(int i) const { return t0 + g + i / 2 * 8; }
};

// P of a head: a warp's 16 rows, as products take them on their left, and the sums of its rows.
struct Pairs {
  uint32_t at[kSteps][4];
  float sums[2];

  // rounds_sums: whether the sums are of what is multiplied with v. Then what rounding does to both
  // cancels where one key outweighs all others, or all weights have one sign; where weights of
  // either sign add up to little, it does not, and is large compared to the sums.
  __device__ void find(const float* products, const TileWeights& weights, const Lane& lane,
                       bool rounds_sums) {
    const int t0 = lane.t0 + lane.g;
    const float after[2] = {weights.after[t0], weights.after[t0 + 8]};
    const float fine[2] = {weights.after_fine[t0], weights.after_fine[t0 + 8]};
    sums[0] = sums[1] = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (16 * step > lane.t0) break;
#pragma unroll
      for (int right = 0; right < 2; ++right) {
        const int j = 16 * step + 2 * lane.q + 8 * right;
        const float2 weight = two_at(weights.weight + j), before = two_at(weights.before + j);
        const float2 before_fine = two_at(weights.before_fine + j);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int t = t0 + 8 * half;
          const float2 product = two_at(products + t * kProductPitch + j);
          const float x = (after[half] - before.x) + (fine[half] - before_fine.x);
          const float y = (after[half] - before.y) + (fine[half] - before_fine.y);
          // What a later row holds, infinite exponents too, stays out.
          const float first = j <= t ? product.x * (weight.x * power_of_2(x)) : 0;
          const float second = j < t ? product.y * (weight.y * power_of_2(y)) : 0;
          const uint32_t pair = round_bf16(first, second);
          sums[half] += rounds_sums
                            ? __uint_as_float(pair << 16) + __uint_as_float(pair & 0xffff0000u)
                            : first + second;
          at[step][half + 2 * right] = pair;
        }
      }
    }
#pragma unroll
    for (float& sum : sums) {
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    }
  }

 private:
  static __device__ float2 two_at(const float* from) {
    return *reinterpret_cast<const float2*>(from);
  }
};

// q z of the warp's rows: of the lane's upper and lower one. z goes to the tensor cores as two
// columns that add up to it.
template <int kDK>
__device__ void multiply_normaliser(const uint16_t* q, const float* z, const Lane& lane,
                                    float (&sums)[2]) {
  const TileMatrix<kDK> Q(q);
  float both[4] = {};
#pragma unroll 4
  for (int x = 0; x < kDK; x += 16) {
    uint32_t left[4], right[2];
    Q.load_left(left, lane.t0, x);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 two = *reinterpret_cast<const float2*>(z + x + 2 * lane.q + 8 * i);
      const uint32_t large = round_bf16(two.x, two.y);
      const uint32_t rest = round_bf16(two.x - __uint_as_float(large << 16),
                                       two.y - __uint_as_float(large & 0xffff0000u));
      right[i] = lane.g == 0 ? large : lane.g == 1 ? rest : 0;
    }
    multiply_bf16(both, left, right[0], right[1]);
  }
  // The first lane of each four has both columns.
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sums[i] =
        __shfl_sync(0xffffffffu, both[2 * i] + both[2 * i + 1], threadIdx.x % kWarpSize / 4 * 4);
  }
}

// Finds the inverses of the normalisers of the lane's rows.
template <int kDK>
__device__ void find_inverse(const TileChunkArgs& a, const Shared<kDK>& s, const Pairs& pairs,
                             const Lane& lane, const float (&e)[2], float (&inverse)[2]) {
  float qz[2];
  multiply_normaliser<kDK>(s.q, s.stage.z, lane, qz);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float N = fmaf(e[half], qz[half], pairs.sums[half]);
    const float floor = s.stage.weights.floor[lane.row(2 * half)];
    inverse[half] = 1 / ((a.bounded ? max_of(fabsf(N), floor) : N) + a.eps);
  }
}

// Whether a lane of the warp has a value that is no number, or infinite: those of a later row must
// not meet the zeros that P has for it.
__device__ bool any_infinite(const uint32_t (&pairs)[4]) {
  bool found = false;
#pragma unroll
  for (const uint32_t pair : pairs) {
    found |= (pair & 0x7f80) == 0x7f80 || (pair & 0x7f800000) == 0x7f800000;
  }
  return __any_sync(0xffffffffu, found);
}

// Puts zeros in the place of those values.
__device__ void leave_out_infinite(uint32_t (&pairs)[4]) {
#pragma unroll
  for (uint32_t& pair : pairs) {
    if ((pair & 0x7f80) == 0x7f80) pair &= 0xffff0000u;
    if ((pair & 0x7f800000) == 0x7f800000) pair &= 0xffffu;
  }
}

// Makes what these values would have made of the outputs of their row and later ones: no number.
__device__ void spread_infinite(const float* v, const Lane& lane, int d0, float (&o)[4]) {
  for (int i = 0; i < 4; ++i) {
    const int d = d0 + 2 * lane.q + i % 2;
    for (int j = lane.t0; j <= lane.row(i); ++j) {
      if (!isfinite(v[j * kValuePitch<kColumns> + d])) o[i] = NAN;
    }
  }
}

// e q S + P v of the warp's rows and columns, 8 columns at a time.
using Outputs = float[kWarpColumns / 8][4];
template <int kDK>
__device__ void multiply(const Stage<kDK>& stage, const uint16_t* q, const Pairs& pairs,
                         const Lane& lane, const float (&e)[2], Outputs& o) {
  const TileMatrix<kDK> Q(q), S(stage.S);
#pragma unroll 4
  for (int x = 0; x < kDK; x += 16) {
    uint32_t left[4];
    Q.load_left(left, lane.t0, x);
#pragma unroll
    for (int n = 0; n < kWarpColumns / 16; ++n) {
      uint32_t right[4];
      S.load_right(right, lane.d0 + 16 * n, x);
      multiply_bf16(o[2 * n], left, right[0], right[1]);
      multiply_bf16(o[2 * n + 1], left, right[2], right[3]);
    }
  }
#pragma unroll
  for (auto& eight : o) {
#pragma unroll
    for (int i = 0; i < 4; ++i) eight[i] *= e[i / 2];
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (16 * step > lane.t0) break;
#pragma unroll
    for (int n = 0; n < kWarpColumns / 16; ++n) {
      uint32_t v[4];
      const int d = lane.d0 + 16 * n;
      load_values<kColumns>(v, stage.v, 16 * step, d, nullptr);
      const bool infinite = 16 * step == lane.t0 && any_infinite(v);
      if (infinite) leave_out_infinite(v);
      multiply_bf16(o[2 * n], pairs.at[step], v[0], v[2]);
      multiply_bf16(o[2 * n + 1], pairs.at[step], v[1], v[3]);
      if (infinite) {
        spread_infinite(stage.v, lane, d, o[2 * n]);
        spread_infinite(stage.v, lane, d + 8, o[2 * n + 1]);
      }
    }
  }
}

// inverse: of the rows' normalisers, or 1.
template <int kDK>
__device__ void write(const TileChunkArgs& a, const Stage<kDK>& stage, const RowBlock& rows,
                      const BlockCoord& at, const Lane& lane, const float (&inverse)[2],
                      const Outputs& o) {
  const float skip = a.skip != nullptr ? a.skip[at.head] : 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = lane.row(2 * half);
    if (t >= rows.L) continue;
    const int64_t row = rows.first + t;
#pragma unroll
    for (int n = 0; n < kWarpColumns / 8; ++n) {
      const int d = lane.d0 + 8 * n + 2 * lane.q;
      float2 two = make_float2(o[n][2 * half] * inverse[half], o[n][2 * half + 1] * inverse[half]);
      if (a.skip != nullptr) {
        const float2 v = *reinterpret_cast<const float2*>(stage.v + t * kValuePitch<kColumns> + d);
        two = make_float2(fmaf(skip, v.x, two.x), fmaf(skip, v.y, two.y));
      }
      const int64_t channel = static_cast<int64_t>(at.head) * a.DV + at.d0 + d;
      if (a.gate.data != nullptr) {
        const float2 z =
            *reinterpret_cast<const float2*>(a.gate.data + row * a.gate.stride + channel);
        two = make_float2(two.x * silu(z.x), two.y * silu(z.y));
      }
      *reinterpret_cast<float2*>(a.o + row * a.H * a.DV + channel) = two;
    }
  }
}

// A block: some of the columns of the heads of a group of a tile, kColumns at a time. each: of
// these.
template <int kDK>
__global__ void __launch_bounds__(kThreads) tile_outputs_kernel(TileChunkArgs a, int each) {
  extern __shared__ float4 outputs_memory[];
  Shared<kDK>& s = *reinterpret_cast<Shared<kDK>*>(outputs_memory);
  let_next_start();
  wait_for_previous();
  const int of_head = a.DV / kColumns, of_group = a.q.heads * of_head;
  const int blocks = (of_group + each - 1) / each;
  const int group_of_tile = static_cast<int>(blockIdx.x) / blocks;
  const int in_part = group_of_tile / a.groups(), group = group_of_tile % a.groups();
  const int sequence = in_part / a.part_tiles, tile = a.part_first + in_part % a.part_tiles;
  const int number = sequence * a.tiles + tile;
  const RowBlock rows = tile_rows(a.seqs, a.chunk, sequence, a.first_tile + tile);
  if (rows.L == 0) return;
  const int first = static_cast<int>(blockIdx.x) % blocks * each;
  const int end = min(first + each, of_group);
  const auto place = [&](int i) {
    return BlockCoord{group * a.q.heads + i / of_head, i % of_head * kColumns};
  };

  const int64_t of_scratch = static_cast<int64_t>(number) * a.groups() + group;
  copy_all<sizeof(s.q), kThreads>(s.q, a.scratch.q + of_scratch * kTileRows * kDK);
  copy_products(s.products, a.scratch.products + of_scratch * kTileRows * kTileRows);

  const Lane lane;
  Pairs pairs;
  float e[2], inverse[2] = {1, 1};
  int head = -1;  // whose pairs these are
  for (int i = first; i < end; ++i) {
    const BlockCoord at = place(i);
    if (i > first) __syncthreads();  // all are done with the columns before
    load_columns(a, s.stage, number, in_part, rows, at);
    commit_copies();
    wait_for_copies();
    __syncthreads();
    if (at.head != head) {
      head = at.head;
      // Where normalisers are bounded, weights have either sign; a stabiliser keeps the greatest at
      // one.
      const bool rounds_sums = !a.bounded || a.m != nullptr;
      pairs.find(s.products, s.stage.weights, lane, rounds_sums);
#pragma unroll
      for (int half = 0; half < 2; ++half) e[half] = s.stage.weights.e[lane.row(2 * half)];
      if (a.z != nullptr) find_inverse(a, s, pairs, lane, e, inverse);
    }
    Outputs o = {};
    multiply<kDK>(s.stage, s.q, pairs, lane, e, o);
    write(a, s.stage, rows, at, lane, inverse, o);
  }
}

template <int kDK>
void launch(const TileChunkArgs& args, Stream& stream) {
  const auto kernel = tile_outputs_kernel<kDK>;
  abort_if_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(sizeof(Shared<kDK>))),
                  "tiles, shared memory");
  // A block takes as many columns in turn as leave every multiprocessor a few blocks.
  constexpr int kWanted = 4;
  const int groups = args.seqs.num_seqs * args.part_tiles * args.groups();
  const int of_group = args.q.heads * (args.DV / kColumns);
  const int wanted = kWanted * static_cast<CudaStream&>(stream).multiprocessors();
  const int blocks = std::clamp(ceil_div(wanted, groups), 1, of_group);
  const int each = ceil_div(of_group, blocks);
  launch_early(stream, "tiles, outputs", kernel,
               {.grid = static_cast<unsigned>(groups * ceil_div(of_group, each)),
                .threads = kThreads,
                .shared = sizeof(Shared<kDK>)},
               args, each);
}

}  // namespace

void tile_outputs(const TileChunkArgs& args, Stream& stream) {
  switch (args.DK) {
    case 32:
      return launch<32>(args, stream);
    case 64:
      return launch<64>(args, stream);
    case 128:
      return launch<128>(args, stream);
    default:
      return launch<256>(args, stream);
  }
}

}  // namespace recurve::cuda::sm80
