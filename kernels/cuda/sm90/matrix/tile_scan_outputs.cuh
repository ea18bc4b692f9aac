#pragma once
#include "kernels/cuda/sm80/quick_silu.cuh"
#include "kernels/cuda/sm90/matrix/tile_scan.cuh"

// The warpgroups that make outputs: o = e q S + P v, of every second tile each.
namespace recurve::cuda::sm90::tile_scan {

__device__ inline float2 two_at(const float* from) {
  return *reinterpret_cast<const float2*>(from);
}

// P of a tile, in the place of q k^T.
__device__ inline void find_pairs(float (&p)[32], const TileWeights& weights, const Lane& lane) {
  const int t0 = lane.row();
  const float after[2] = {weights.after[t0], weights.after[t0 + 8]};
  const float fine[2] = {weights.after_fine[t0], weights.after_fine[t0 + 8]};
#pragma unroll
  for (int eight = 0; eight < kTileRows / 8; ++eight) {
    const int j = 8 * eight + 2 * lane.q;
    if (eight > 2 * lane.warp + 1) {  // keys that come later than all of the warp's rows
      p[4 * eight] = p[4 * eight + 1] = p[4 * eight + 2] = p[4 * eight + 3] = 0;
      continue;
    }
    const float2 weight = two_at(weights.weight + j), before = two_at(weights.before + j);
    const float2 before_fine = two_at(weights.before_fine + j);
    const bool earlier = eight < 2 * lane.warp;  // than all of the warp's rows
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = t0 + 8 * half;
      const float x = (after[half] - before.x) + (fine[half] - before_fine.x);
      const float y = (after[half] - before.y) + (fine[half] - before_fine.y);
      float* pair = &p[4 * eight + 2 * half];
      pair[0] *= weight.x * sm80::power_of_2(x);
      pair[1] *= weight.y * sm80::power_of_2(y);
      if (earlier) continue;
      // What a later row holds, infinite exponents too, stays out.
      pair[0] = j <= t ? pair[0] : 0;
      pair[1] = j < t ? pair[1] : 0;
    }
  }
}

// P in bf16, as products have it on their left.
using LeftPairs = uint32_t[kTileRows / 16][4];
__device__ inline void round_pairs(const float (&p)[32], LeftPairs& left) {
#pragma unroll
  for (int i = 0; i < 32; i += 2) left[i / 8][i % 8 / 2] = round_bf16(p[i], p[i + 1]);
}
__device__ inline void load_pairs(const uint4* pieces, LeftPairs& left) {
#pragma unroll
  for (int step = 0; step < kTileRows / 16; ++step) {
    const uint4 four = pieces[step * kGroupThreads + threadIdx.x % kGroupThreads];
    left[step][0] = four.x;
    left[step][1] = four.y;
    left[step][2] = four.z;
    left[step][3] = four.w;
  }
}

// o += p v
__device__ inline void multiply_values(float (&o)[32], const LeftPairs& left, const uint16_t* v) {
  const uint64_t values = operand_across(shared_address(v), 0);
  begin_products();
#pragma unroll
  for (int step = 0; step < kTileRows / 16; ++step) {
    multiply(o, left[step], values + step * (16 * 128 >> 4), 1);
  }
  commit_products();
  wait_for_products<0>();
  settle(o);
}

// Makes what infinite values would have made of the outputs of their row and later ones: no number.
// The warpgroup, none of which goes on before all have read the values.
template <int kDK>
__device__ void spread_infinite(const Stage<kDK>& stage, const Lane& lane, int group,
                                float (&o)[32]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int t = lane.row() + i / 2 % 2 * 8, d = i / 4 * 8 + 2 * lane.q + i % 2;
    for (int j = 0; j <= t; ++j) {
      const float v = stage.v[Stage<kDK>::value_at(j, d)];
      if (is_infinite(round_bf16(v, 0))) o[i] = NAN;
    }
  }
  sync_group(group);
}

// How a warp goes through its 16 rows to read gates and write outputs: in `kPasses` passes, each of
// kRowsAtOnce whole rows with four columns a lane.
struct RowLane {
  static constexpr int kLanes = kColumns / 4, kRowsAtOnce = kWarpSize / kLanes;
  static constexpr int kPasses = 16 / kRowsAtOnce;
  int first, d;  // row of the first pass, and column
  __device__ explicit RowLane(const Lane& lane)
      : first(16 * lane.warp + static_cast<int>(threadIdx.x) % kWarpSize / kLanes),
        d(static_cast<int>(threadIdx.x) % kLanes * 4) {}
  __device__ int row(int pass) const { return first + pass * kRowsAtOnce; }
};

// The gates of a thread's outputs, on their way while these are made.
struct OutputGates {
  float4 at[RowLane::kPasses];

  __device__ void load(const TileChunkArgs& a, const RowBlock& rows, int64_t column,
                       const RowLane& lane) {
    if (a.gate.data == nullptr) return;
    const float* from = a.gate.data + (rows.first + lane.first) * a.gate.stride + column + lane.d;
#pragma unroll
    for (int pass = 0; pass < RowLane::kPasses; ++pass) {
      if (lane.row(pass) < rows.L) at[pass] = *reinterpret_cast<const float4*>(from);
      from += RowLane::kRowsAtOnce * a.gate.stride;
    }
  }
};

// A lane's part of the outputs of its warp's rows.
struct RowOutputs {
  float4 at[RowLane::kPasses];

  // Takes the outputs, with skip v added where it skips. They go through the place of the values,
  // from where whole rows are written.
  template <int kDK>
  __device__ void take(Stage<kDK>& stage, bool skips, float skip, const Lane& lane,
                       const RowLane& row_lane, const float (&o)[32]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int eight = 0; eight < 8; ++eight) {
        auto* place = reinterpret_cast<float2*>(
            stage.v + stage.value_at(lane.row() + 8 * half, 8 * eight + 2 * lane.q));
        float2 two = make_float2(o[4 * eight + 2 * half], o[4 * eight + 2 * half + 1]);
        if (skips) {
          two = make_float2(fmaf(skip, place->x, two.x), fmaf(skip, place->y, two.y));
        }
        *place = two;
      }
    }
    __syncwarp();
#pragma unroll
    for (int pass = 0; pass < RowLane::kPasses; ++pass) {
      at[pass] = *reinterpret_cast<const float4*>(stage.v +
                                                  stage.value_at(row_lane.row(pass), row_lane.d));
    }
  }

  __device__ void gate(const OutputGates& gates) {
#pragma unroll
    for (int pass = 0; pass < RowLane::kPasses; ++pass) {
      const float4 z = gates.at[pass];
      float4& y = at[pass];
      y = make_float4(y.x * sm80::quick_silu(z.x), y.y * sm80::quick_silu(z.y),
                      y.z * sm80::quick_silu(z.z), y.w * sm80::quick_silu(z.w));
    }
  }

  __device__ void write(const TileChunkArgs& a, const RowBlock& rows, int64_t column,
                        const RowLane& lane) const {
    const int64_t stride = static_cast<int64_t>(a.H) * a.DV;
    float* to = a.o + (rows.first + lane.first) * stride + column + lane.d;
#pragma unroll
    for (int pass = 0; pass < RowLane::kPasses; ++pass) {
      if (lane.row(pass) < rows.L) *reinterpret_cast<float4*>(to) = at[pass];
      to += RowLane::kRowsAtOnce * stride;
    }
  }

  // Begins the norm of what reads them. norm: of the lane's columns.
  __device__ void defer_norm(const TileChunkArgs& a, const RowBlock& rows, int64_t column,
                             const float4& norm, const RowLane& lane) const {
#pragma unroll
    for (int pass = 0; pass < RowLane::kPasses; ++pass) {
      const float4& y = at[pass];
      const float four = squares_of(y), squares = four + __shfl_xor_sync(0xffffffffu, four, 1);
      if (lane.row(pass) >= rows.L) continue;
      const int64_t row = rows.first + lane.row(pass);
      const int64_t to = row * a.H * a.DV + column + lane.d;
      *reinterpret_cast<uint2*>(a.next.x + to) =
          make_uint2(round_bf16(__fmul_rn(y.x, norm.x), __fmul_rn(y.y, norm.y)),
                     round_bf16(__fmul_rn(y.z, norm.z), __fmul_rn(y.w, norm.w)));
      if (lane.d % DeferredRmsNorm::kSquares == 0)
        a.next.squares[to / DeferredRmsNorm::kSquares] = squares;
      if (column + lane.d == 0) a.next.scales[row] = 0;
    }
  }
};

// The inverses of the normalisers of a thread's rows.
__device__ inline void find_inverse(const TileChunkArgs& a, const TileWeights& weights,
                                    const Lane& lane, const float (&p)[32], float (&inverse)[2]) {
  // As in sm80/matrix/tile_outputs.cu: whether the sums are of what is multiplied with values.
  const bool rounds_sums = !a.bounded || a.m != nullptr;
  float sums[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 32; i += 2) {
    const uint32_t pair = round_bf16(p[i], p[i + 1]);
    sums[i / 2 % 2] += rounds_sums
                           ? __uint_as_float(pair << 16) + __uint_as_float(pair & 0xffff0000u)
                           : p[i] + p[i + 1];
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sums[half] += __shfl_xor_sync(0xffffffffu, sums[half], 1);
    sums[half] += __shfl_xor_sync(0xffffffffu, sums[half], 2);
    const int t = lane.row() + 8 * half;
    const float N = weights.eqz[t] + sums[half];
    inverse[half] = 1 / ((a.bounded ? max_of(fabsf(N), weights.floor[t]) : N) + a.eps);
  }
}

// group: 0 or 1, whose tiles are every second one from the block's first or second on.
template <int kDK, bool kChannels>
__device__ void make_outputs(const TileChunkArgs& a, Shared<kDK>& s, int group) {
  const BlockCoord block(a);
  const Lane lane;
  const RowLane row_lane(lane);
  using S = Shape<kDK>;
  const int64_t column = block.column(a);
  const float skip = a.skip != nullptr ? a.skip[block.head] : 0;
  const bool first_lane = threadIdx.x % kWarpSize == 0;
  float4 norm = {};
  if (S::kGates && a.next.x != nullptr) {
    norm = *reinterpret_cast<const float4*>(a.next_norm + column + row_lane.d);
  }
  if (block.first == block.end) return;
  wait(&s.arrived, 0);
  for (int n = block.first + group;; n += kOutputGroups) {
    const RowBlock rows = block.rows(a, n);
    if (rows.L == 0) return;
    const RingStage<S::kStages> ring(n);
    const HandedTile<S::kRounded> rounded(n - block.first);
    const HandedTile<S::kStates> state(n - block.first);
    Stage<kDK>& stage = s.stages[ring.index];
    OutputGates gates;
    if (S::kGates) gates.load(a, rows, column, row_lane);
    wait(&s.full[ring.index], ring.parity);

    float p[32], o[32];
    LeftPairs left;
    if constexpr (kChannels) {
      const int64_t number = static_cast<int64_t>(block.sequence) * a.tiles + n;
      load_pairs(a.scratch.pairs + (number * a.H + block.head) * kPairPieces, left);
    } else {
      begin_products();
      multiply_all<kDK>(p, stage.q, stage.k);
      commit_products();
    }
    wait_among_products(&s.state_full[state.group], state.parity);
    begin_products();
    multiply_all<kDK>(o, stage.q, s.states[state.buffer]);
    commit_products();
    float inverse[2] = {1, 1};
    if constexpr (!kChannels) {
      wait_for_products<1>();
      settle(p);
      find_pairs(p, stage.weights, lane);
      if (a.z != nullptr) find_inverse(a, stage.weights, lane, p, inverse);
      round_pairs(p, left);
    }
    wait_for_products<0>();
    settle(o);
    if (first_lane) arrive(&s.state_empty[state.group]);
    float e[2] = {a.channel_scale, a.channel_scale};
    if constexpr (!kChannels) {
      e[0] = stage.weights.e[lane.row()];
      e[1] = stage.weights.e[lane.row() + 8];
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) o[i] *= e[i / 2 % 2];
    wait(&s.rounded_full[rounded.group], rounded.parity);
    multiply_values(o, left, s.rounded[rounded.buffer]);
    if (!kChannels && a.z != nullptr) {
#pragma unroll
      for (int i = 0; i < 32; ++i) o[i] *= inverse[i / 2 % 2];
    }
    const uint32_t* infinite = s.infinite[rounded.buffer];
    if ((infinite[0] | infinite[1] | infinite[2]) != 0) spread_infinite(stage, lane, group, o);
    __syncwarp();
    if (first_lane) arrive(&s.rounded_empty[rounded.group]);
    RowOutputs outputs;
    outputs.take(stage, a.skip != nullptr, skip, lane, row_lane, o);
    show_to_copies();
    __syncwarp();
    if (first_lane) arrive(&s.empty[ring.index]);
    if (S::kGates && a.gate.data != nullptr) outputs.gate(gates);
    if (S::kGates && a.next.x != nullptr) {
      outputs.defer_norm(a, rows, column, norm, row_lane);
    } else {
      outputs.write(a, rows, column, row_lane);
    }
  }
}

}  // namespace recurve::cuda::sm90::tile_scan
