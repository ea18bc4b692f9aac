#pragma once
#include "kernels/cuda/sm80/quick_silu.cuh"
#include "kernels/cuda/sm90/tile_scan.cuh"

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
    const float2 weight = two_at(weights.weight + j), before = two_at(weights.before + j);
    const float2 before_fine = two_at(weights.before_fine + j);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = t0 + 8 * half;
      const float x = (after[half] - before.x) + (fine[half] - before_fine.x);
      const float y = (after[half] - before.y) + (fine[half] - before_fine.y);
      float* pair = &p[4 * eight + 2 * half];
      // What a later row holds, infinite exponents too, stays out.
      pair[0] = j <= t ? pair[0] * (weight.x * sm80::power_of_2(x)) : 0;
      pair[1] = j < t ? pair[1] * (weight.y * sm80::power_of_2(y)) : 0;
    }
  }
}

// o += p v
__device__ inline void multiply_values(float (&o)[32], const float (&p)[32], const uint16_t* v) {
  const uint64_t values = operand_across(shared_address(v), 0);
  uint32_t left[kTileRows / 16][4];
#pragma unroll
  for (int i = 0; i < 32; i += 2) left[i / 8][i % 8 / 2] = round_bf16(p[i], p[i + 1]);
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
template <int kDK>
__device__ void spread_infinite(const Stage<kDK>& stage, const Lane& lane, float (&o)[32]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int t = lane.row() + i / 2 % 2 * 8, d = i / 4 * 8 + 2 * lane.q + i % 2;
    for (int j = 0; j <= t; ++j) {
      const float v = stage.v[Stage<kDK>::value_at(j, d)];
      if (is_infinite(round_bf16(v, 0))) o[i] = NAN;
    }
  }
}

// The gates of a thread's outputs, on their way while these are made.
struct OutputGates {
  float2 at[16];

  __device__ void load(const TileChunkArgs& a, const RowBlock& rows, int64_t column,
                       const Lane& lane) {
    if (a.gate.data == nullptr) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = lane.row() + 8 * half;
      const float* from = a.gate.data + (rows.first + t) * a.gate.stride + column + 2 * lane.q;
#pragma unroll
      for (int eight = 0; eight < 8; ++eight) {
        at[2 * eight + half] =
            t < rows.L ? *reinterpret_cast<const float2*>(from + 8 * eight) : make_float2(0, 0);
      }
    }
  }
};

template <int kDK>
__device__ void write(const TileChunkArgs& a, const Stage<kDK>& stage, const RowBlock& rows,
                      int64_t column, float skip, const Lane& lane, const OutputGates& gates,
                      const float (&o)[32]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = lane.row() + 8 * half;
    if (t >= rows.L) continue;
    float* to = a.o + static_cast<int64_t>(rows.first + t) * a.H * a.DV + column + 2 * lane.q;
#pragma unroll
    for (int eight = 0; eight < 8; ++eight) {
      float2 two = make_float2(o[4 * eight + 2 * half], o[4 * eight + 2 * half + 1]);
      if (a.skip != nullptr) {
        const float2 v = two_at(stage.v + Stage<kDK>::value_at(t, 8 * eight + 2 * lane.q));
        two = make_float2(fmaf(skip, v.x, two.x), fmaf(skip, v.y, two.y));
      }
      if (a.gate.data != nullptr) {
        const float2 gate = gates.at[2 * eight + half];
        two = make_float2(two.x * sm80::quick_silu(gate.x), two.y * sm80::quick_silu(gate.y));
      }
      *reinterpret_cast<float2*>(to + 8 * eight) = two;
    }
  }
}

// group: 0 or 1, whose tiles are those with even or odd numbers.
template <int kDK>
__device__ void make_outputs(const TileChunkArgs& a, Shared<kDK>& s, int group) {
  const Place place(a);
  const Lane lane;
  const int64_t column = place.column(a);
  const float skip = a.skip != nullptr ? a.skip[place.head] : 0;
  const bool first_lane = threadIdx.x % kWarpSize == 0;
  for (int n = group;; n += kOutputGroups) {
    const RowBlock rows = place.rows(a, n);
    if (rows.L == 0) return;
    const Turn<kStages> turn(n);
    const Turn<kRounded> rounded(n);
    const Turn<kStates> state(n);
    const Stage<kDK>& stage = s.stages[turn.stage];
    OutputGates gates;
    gates.load(a, rows, column, lane);
    wait(&s.full[turn.stage], turn.parity);

    float p[32], o[32];
    begin_products();
    multiply_all<kDK>(p, stage.q, stage.k);
    commit_products();
    wait_among_products(&s.state_full[state.stage], state.parity);
    begin_products();
    multiply_all<kDK>(o, stage.q, s.states[state.stage]);
    commit_products();
    wait_for_products<1>();
    settle(p);
    find_pairs(p, stage.weights, lane);
    wait_for_products<0>();
    settle(o);
    if (first_lane) arrive(&s.state_empty[state.stage]);
    const float e[2] = {stage.weights.e[lane.row()], stage.weights.e[lane.row() + 8]};
#pragma unroll
    for (int i = 0; i < 32; ++i) o[i] *= e[i / 2 % 2];
    wait(&s.rounded_full[rounded.stage], rounded.parity);
    multiply_values(o, p, s.rounded[rounded.stage].v);
    const uint32_t* infinite = s.infinite[rounded.stage];
    if ((infinite[0] | infinite[1] | infinite[2]) != 0) spread_infinite(stage, lane, o);
    __syncwarp();
    if (first_lane) arrive(&s.rounded_empty[rounded.stage]);
    write(a, stage, rows, column, skip, lane, gates, o);
    __syncwarp();
    if (first_lane) arrive(&s.empty[turn.stage]);
  }
}

}  // namespace recurve::cuda::sm90::tile_scan
