#pragma once
#include "kernels/cuda/sm90/matrix/tile_scan.cuh"

// The warpgroups that have the state: (kColumns, kKeys) each in fp32 in its registers. Before each
// tile they leave the state in bf16 for those that make outputs.
namespace recurve::cuda::sm90::tile_scan {

// Four 8 by 8 matrices of bf16 as products have them, with rows of 16 bytes: of matrix m those of
// lanes 8 m to 8 m + 7.
__device__ inline void store_matrices(uint32_t row, uint32_t a, uint32_t b, uint32_t c,
                                      uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

template <int kDK>
struct State {
  static constexpr int kKeys = Shape<kDK>::kKeys;

  // The warpgroup's first key.
  static __device__ int x0() {
    if (Shape<kDK>::kStateGroups == 1) return 0;
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kWarpSize, 0);
    return (warp / (kGroupThreads / kWarpSize) - kFirstStateGroup) * kKeys;
  }

  float at[kKeys / 2];

  // Calls visit(two values at neighbouring keys, place of the first in the head's state, distance
  // to the second).
  template <typename Visit>
  __device__ void for_each(const TileChunkArgs& a, const BlockCoord& block, const Lane& lane,
                           Visit visit) {
#pragma unroll
    for (int i = 0; i < kKeys / 2; i += 2) {
      const int64_t d = block.d0 + lane.row() + i / 2 % 2 * 8, x = x0() + i / 4 * 8 + 2 * lane.q;
      visit(at[i], at[i + 1], a.keys_inner ? d * kDK + x : x * a.DV + d, a.keys_inner ? 1 : a.DV);
    }
  }

  __device__ void leave(uint16_t* to, const Lane& lane) const {
    const int matrix = threadIdx.x % kWarpSize / 8;
    const int d = 16 * lane.warp + matrix % 2 * 8 + static_cast<int>(threadIdx.x) % 8;
#pragma unroll
    for (int piece = 0; piece < kKeys / 8; piece += 2) {
      const float* eight = &at[4 * piece];
      store_matrices(shared_address(to + swizzled_at(d, x0() / 8 + piece + matrix / 2)),
                     round_bf16(eight[0], eight[1]), round_bf16(eight[2], eight[3]),
                     round_bf16(eight[4], eight[5]), round_bf16(eight[6], eight[7]));
    }
  }

  __device__ void scale(float by) {
#pragma unroll
    for (float& value : at) value *= by;
  }

  // by: of each key of the head.
  __device__ void scale_channels(const float* by, const Lane& lane) {
#pragma unroll
    for (int i = 0; i < kKeys / 2; i += 4) {
      const float2 two = *reinterpret_cast<const float2*>(by + x0() + 2 * i + 2 * lane.q);
      at[i] *= two.x;
      at[i + 1] *= two.y;
      at[i + 2] *= two.x;
      at[i + 3] *= two.y;
    }
  }

  // v: (kTileRows, kColumns), k: (kTileRows, kDK). To be waited for.
  __device__ void begin_add(const uint16_t* v, const uint16_t* k) {
    const uint64_t values = operand_across(shared_address(v), 0);
    const uint64_t keys = operand_across(shared_address(k + x0() / 64 * kHalf),
                                         kHalf * static_cast<int>(sizeof(uint16_t)));
    begin_products();
#pragma unroll
    for (int step = 0; step < kTileRows / 16; ++step) {
      constexpr int kStep = 16 * 128 >> 4;
      multiply_across(at, values + step * kStep, keys + step * kStep, 1);
    }
    commit_products();
  }
  __device__ void end_add() {
    wait_for_products<0>();
    settle(at);
  }

  template <typename T>
  __device__ void round() {
#pragma unroll
    for (float& value : at) value = sm80::rounded<T>(value);
  }
};

// A tile's values times the weights of their rows, by all warpgroups that have the state.
template <int kDK, bool kChannels>
__device__ void weigh_values(const Stage<kDK>& stage, const RowBlock& rows, uint16_t* to) {
  constexpr int kThreads = Shape<kDK>::kStateThreads, kAtOnce = kThreads / kTileRows;
  const int thread = static_cast<int>(threadIdx.x) - kFirstStateGroup * kGroupThreads;
  const int row = thread % kTileRows;
  const float w = kChannels ? 1 : stage.weights.w[row];
#pragma unroll 2
  for (int i = 0; i < kColumns / 8 / kAtOnce; ++i) {
    const int piece = thread / kTileRows * (kColumns / 8 / kAtOnce) + i;
    *reinterpret_cast<uint4*>(to + swizzled_at(row, piece)) =
        round_eight(stage, rows, row, piece, w);
  }
  show_to_copies();
}

template <typename T, int kDK, bool kChannels>
__device__ void bring_state(const TileChunkArgs& a, Shared<kDK>& s) {
  const BlockCoord block(a);
  const Lane lane;
  RowBlock rows = block.rows(a, 0);
  if (block.idle()) return;
  const int64_t kept_head = static_cast<int64_t>(a.seqs.slot[block.sequence]) * a.H + block.head;
  T* const kept = sm80::values_of<T>(a.S) + kept_head * kDK * a.DV;
  using S = Shape<kDK>;
  State<kDK> state;
  state.for_each(a, block, lane, [&](float& first, float& second, int64_t at, int64_t step) {
    first = sm80::value_of(kept[at]);
    second = sm80::value_of(kept[at + step]);
  });
  // The last of the cluster's blocks writes it when all have it.
  if (a.segments > 1) arrive_in_cluster();
  if (block.first == 0) arrive(&s.arrived);
  wait(&s.full[0], 0);
  weigh_values<kDK, kChannels>(s.stages[0], rows, s.weighted[0]);
  sync_group<S::kStateThreads>(kFirstStateGroup);
  const int tiles_of_chunk = a.chunk / kTileRows;
  for (int n = 0; rows.L > 0; ++n) {
    const RingStage<S::kStages> ring(n), next(n + 1);
    const Stage<kDK>& stage = s.stages[ring.index];
    if (n >= block.first) {
      const HandedTile<S::kStates> left(n - block.first);
      wait_until_taken<S::kStates>(s.state_empty, n - block.first);
      state.leave(s.states[left.buffer], lane);
      show_to_copies();
      arrive(&s.state_full[left.group]);
    }
    if constexpr (kChannels) {
      state.scale_channels(stage.decays(), lane);
    } else {
      state.scale(stage.weights.F);
    }
    state.begin_add(s.weighted[n % kWeighted], stage.k);
    rows = block.rows(a, n + 1);
    if (rows.L > 0) {
      wait_among_products(&s.full[next.index], next.parity);
      weigh_values<kDK, kChannels>(s.stages[next.index], rows, s.weighted[(n + 1) % kWeighted]);
    }
    state.end_add();
    sync_group<S::kStateThreads>(kFirstStateGroup);
    if (threadIdx.x % kWarpSize == 0) {
      arrive(n < block.first ? &s.passed[ring.index] : &s.empty[ring.index]);
    }
    if (n + 1 == block.first) arrive(&s.arrived);
    if (!std::is_same_v<T, float> && (a.first_tile + n + 1) % tiles_of_chunk == 0) {
      state.template round<T>();
    }
  }
  if (!block.last) return;
  if (a.segments > 1) wait_for_cluster();
  state.for_each(a, block, lane, [&](float first, float second, int64_t at, int64_t step) {
    kept[at] = sm80::kept_as<T>(first);
    kept[at + step] = sm80::kept_as<T>(second);
  });
}

}  // namespace recurve::cuda::sm90::tile_scan
