#pragma once
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/vector.cuh"
#include "kernels/ops/delta_rule.h"

// The step form, with the state in registers from the first row of a sequence to its last. Columns
// of a state know nothing of each other, so a warp has some of them with all keys, and the sums
// over keys stay inside it: a thread has four columns of some keys. The order of the sums follows
// from the sizes of a head alone, whatever else is computed with a sequence's rows.
namespace recurve::cuda::sm80 {

// How a warp stands over a state: kWidth threads side by side, four columns each, and above each
// other kGroups groups of keys. kParts: of the keys of a thread, whose sums are made apart, so that
// a shape with half the keys a thread and twice the groups adds up in the same order.
template <int kKeysOfThread, int kThreadsAcross, int kPartsOfKeys>
struct DeltaShape {
  static constexpr int kKeys = kKeysOfThread, kWidth = kThreadsAcross, kParts = kPartsOfKeys;
  static constexpr int kGroups = kWarpSize / kWidth;
  static constexpr int kMostKeys = kGroups * kKeys;
  static constexpr int kThreads = 128, kWarps = kThreads / kWarpSize;
  static constexpr int kColumns = kWarps * kWidth * 4;  // of a block
  static constexpr int kBlocks = kKeys <= 8 ? 4 : 3;    // that are to share a multiprocessor
  static constexpr int kPairs = kGroups * kParts / 2;   // of parts whose sums are added up first

  // The same with half the columns a warp: for few sequences of many rows.
  using OfRows = DeltaShape<kKeys / 2, kWidth / 2, 1>;
};
using NarrowDelta = DeltaShape<8, 4, 2>;   // of 64 keys a head, at most
using MiddleDelta = DeltaShape<16, 4, 2>;  // of 128
using WideDelta = DeltaShape<16, 2, 2>;    // of 256

// A part of a head of a sequence, and which keys and columns of it a thread has.
struct DeltaThreadCoord {
  int sequence, head;
  int tile;    // first column of the block
  int group;   // keys 4 (group + j kGroups) to the next four
  int column;  // first, in the block
};
template <typename Shape>
__device__ inline DeltaThreadCoord delta_coord(int H, int tiles) {
  const int block = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  return {block / tiles / H, block / tiles % H, block % tiles * Shape::kColumns,
          lane / Shape::kWidth, (warp * Shape::kWidth + lane % Shape::kWidth) * 4};
}

// What a thread has of a state. kVector: rows of it begin at multiples of four values.
template <typename T, typename Shape, bool kVector>
struct DeltaState {
  float4 S[Shape::kKeys];

  __device__ static int key(int j, int group) {
    return 4 * (group + j / 4 * Shape::kGroups) + j % 4;
  }

  // Values from the last of four keys to the thread's next.
  __device__ static int64_t leap_of(const DeltaRuleArgs& a) {
    return static_cast<int64_t>(4 * Shape::kGroups - 3) * a.DV;
  }

  // from: its columns of the first key. count: columns that there are from there on.
  __device__ void load(const T* from, const DeltaRuleArgs& a, int group, int count, bool outgrown) {
    Four<T> kept[Shape::kKeys];
    const int64_t step = a.DV, leap = leap_of(a);
    const auto load_all_keys = [&](auto load_one) {
      const T* at = from + 4 * group * step;
#pragma unroll
      for (int j = 0; j < Shape::kKeys; ++j) {
        kept[j] = {};
        if (key(j, group) < a.DK && count > 0) load_one(kept[j], at);
        at += j % 4 < 3 ? step : leap;
      }
    };
    if (kVector && outgrown) {
      load_all_keys([](Four<T>& to, const T* at) { load_outgrown(to, at); });
    } else {
      load_all_keys([&](Four<T>& to, const T* at) { to = load_four<kVector>(at, count); });
    }
#pragma unroll
    for (int j = 0; j < Shape::kKeys; ++j) S[j] = widened(kept[j]);
  }

  __device__ void store(T* to, const DeltaRuleArgs& a, int group, int count, bool outgrown) const {
    const int64_t step = a.DV, leap = leap_of(a);
    const auto store_all_keys = [&](auto store_one) {
      T* at = to + 4 * group * step;
#pragma unroll
      for (int j = 0; j < Shape::kKeys; ++j) {
        if (key(j, group) < a.DK && count > 0) store_one(at, four_of<T>(S[j]));
        at += j % 4 < 3 ? step : leap;
      }
    };
    if (kVector && outgrown) {
      store_all_keys([](T* at, const Four<T>& four) { store_outgrown(at, four); });
    } else {
      store_all_keys([&](T* at, const Four<T>& four) { store_four<kVector>(at, four, count); });
    }
  }

  // What is left of it where a chunk ends.
  __device__ void round() {
#pragma unroll
    for (int j = 0; j < Shape::kKeys; ++j) S[j] = rounded<T>(S[j]);
  }
};

__device__ inline float4 sum_of(const float4& x, const float4& y) {
  return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}
__device__ inline float4 sum_across(const float4& x, int offset) {
  return sum_of(x, make_float4(__shfl_xor_sync(0xffffffffu, x.x, offset),
                               __shfl_xor_sync(0xffffffffu, x.y, offset),
                               __shfl_xor_sync(0xffffffffu, x.z, offset),
                               __shfl_xor_sync(0xffffffffu, x.w, offset)));
}

// The sums over all keys, known to all groups, of those of each part.
template <typename Shape>
__device__ inline float4 sum_of_key_groups(const float4 (&parts)[Shape::kParts]) {
  float4 x;
  if constexpr (Shape::kParts == 2) {
    x = sum_of(parts[0], parts[1]);
  } else {
    x = sum_across(parts[0], kWarpSize / 2);
  }
#pragma unroll
  for (int pairs = 1; pairs < Shape::kPairs; pairs *= 2) x = sum_across(x, pairs * Shape::kWidth);
  return x;
}

// A row of a head in shared memory, with zeros behind its keys.
struct DeltaRow {
  const float* k;
  const float* q;
  const float* decays;  // exp(g) of each key, with decays of channels
  const float* faded;   // the same, and times k
  float4 v;             // of the thread's columns
  float decay;          // exp(g) of the head, or 1
  float beta;
};

__device__ inline void add_scaled(float4& sum, float x, const float4& S) {
  sum.x = __fmaf_rn(x, S.x, sum.x);
  sum.y = __fmaf_rn(x, S.y, sum.y);
  sum.z = __fmaf_rn(x, S.z, sum.z);
  sum.w = __fmaf_rn(x, S.w, sum.w);
}
__device__ inline void advance(float4& S, float decay, float k, const float4& u) {
  S.x = __fmaf_rn(k, u.x, __fmul_rn(decay, S.x));
  S.y = __fmaf_rn(k, u.y, __fmul_rn(decay, S.y));
  S.z = __fmaf_rn(k, u.z, __fmul_rn(decay, S.z));
  S.w = __fmaf_rn(k, u.w, __fmul_rn(decay, S.w));
}
// beta (v - decay held)
__device__ inline float replaced(const DeltaRow& x, float v, float held) {
  return __fmul_rn(x.beta, __fmaf_rn(-x.decay, held, v));
}

// A row: gives the thread's part of o of its columns, a sum over its own keys.
template <bool kChannels, typename T, typename Shape, bool kVector>
__device__ float4 delta_step(DeltaState<T, Shape, kVector>& state, const DeltaRow& x, int group) {
  const float* const reading = kChannels ? x.faded : x.k;
  float4 held[Shape::kParts] = {}, outputs[Shape::kParts] = {};
#pragma unroll
  for (int j = 0; j < Shape::kKeys; j += 4) {
    const int key = 4 * (group + j / 4 * Shape::kGroups);
    const float4 k = *reinterpret_cast<const float4*>(reading + key);
    float4& sum = held[j / 4 % Shape::kParts];
    add_scaled(sum, k.x, state.S[j]);
    add_scaled(sum, k.y, state.S[j + 1]);
    add_scaled(sum, k.z, state.S[j + 2]);
    add_scaled(sum, k.w, state.S[j + 3]);
  }
  float4 u = sum_of_key_groups<Shape>(held);
  u = make_float4(replaced(x, x.v.x, u.x), replaced(x, x.v.y, u.y), replaced(x, x.v.z, u.z),
                  replaced(x, x.v.w, u.w));
#pragma unroll
  for (int j = 0; j < Shape::kKeys; j += 4) {
    const int key = 4 * (group + j / 4 * Shape::kGroups);
    const float4 k = *reinterpret_cast<const float4*>(x.k + key);
    const float4 q = *reinterpret_cast<const float4*>(x.q + key);
    float4 F = make_float4(x.decay, x.decay, x.decay, x.decay);
    if constexpr (kChannels) F = *reinterpret_cast<const float4*>(x.decays + key);
    advance(state.S[j], F.x, k.x, u);
    advance(state.S[j + 1], F.y, k.y, u);
    advance(state.S[j + 2], F.z, k.z, u);
    advance(state.S[j + 3], F.w, k.w, u);
    float4& o = outputs[j / 4 % Shape::kParts];
    add_scaled(o, q.x, state.S[j]);
    add_scaled(o, q.y, state.S[j + 1]);
    add_scaled(o, q.z, state.S[j + 2]);
    add_scaled(o, q.w, state.S[j + 3]);
  }
  if constexpr (Shape::kParts == 2) return sum_of(outputs[0], outputs[1]);
  return outputs[0];
}

}  // namespace recurve::cuda::sm80
