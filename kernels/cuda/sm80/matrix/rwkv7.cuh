#pragma once
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/vector.cuh"
#include "kernels/ops/rwkv7.h"

// The step form, with the state in registers from the first row of a sequence to its last. Columns
// of a state know nothing of each other, so a warp has some of them with all keys, and the sums
// over keys stay inside it: a thread has four columns of some keys side by side. Every kernel
// computes a row by the same operations in the same order, so that they may take turns.
namespace recurve::cuda::sm80 {

constexpr int kRwkv7Width = 4;                         // threads of a warp side by side
constexpr int kRwkv7Columns = 4 * kRwkv7Width;         // of a warp
constexpr int kRwkv7Groups = kWarpSize / kRwkv7Width;  // of keys

// Of a block, which has a head: warps side by side.
constexpr int rwkv7_threads(int N) { return (N + kRwkv7Columns - 1) / kRwkv7Columns * kWarpSize; }

// A head of a sequence, and which keys and columns of it a thread has, from these on.
struct Rwkv7ThreadCoord {
  int sequence, head, key, column;
};
template <int kKeys>
__device__ inline Rwkv7ThreadCoord rwkv7_coord(int H) {
  const int block = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  return {block / H, block % H, lane / kRwkv7Width * kKeys,
          warp * kRwkv7Columns + lane % kRwkv7Width * 4};
}

// What a thread needs of a row: of its keys, with w the decay and b = kk alpha; v of its columns.
template <int kKeys>
struct Rwkv7Row {
  float r[kKeys], w[kKeys], k[kKeys], kk[kKeys], b[kKeys];
  float4 v;
};

// kWhole: a head fills the keys and columns of its warps, and everything begins at multiples of 16
// bytes. Elsewhere there are zeros.
template <bool kWhole>
__device__ inline float4 load_inputs(const float* from, int count) {
  if constexpr (kWhole) return *reinterpret_cast<const float4*>(from);
  return load4<false>(from, count);
}
template <bool kWhole, int kKeys>
__device__ void load_keys(float (&to)[kKeys], const float* from, int count) {
#pragma unroll
  for (int j = 0; j < kKeys; j += 4) {
    const float4 four = load_inputs<kWhole>(from + j, count - j);
    to[j] = four.x;
    to[j + 1] = four.y;
    to[j + 2] = four.z;
    to[j + 3] = four.w;
  }
}
__device__ inline float rwkv7_decay(float lw) { return expf(lw); }
__device__ inline float rwkv7_b(float kk, float alpha) { return __fmul_rn(kk, alpha); }

// What a thread has of a state: four columns of each of its keys.
template <typename T, int kKeys>
struct Rwkv7State {
  float4 S[kKeys];

  template <bool kWhole, bool kOutgrown>
  __device__ void load(const T* from, int N, const Rwkv7ThreadCoord& place) {
    Four<T> kept[kKeys];
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      kept[j] = {};
      if constexpr (kOutgrown) {
        load_outgrown(kept[j], from + j * N);
      } else if (kWhole || place.key + j < N) {
        kept[j] = load_four<kWhole>(from + j * N, N - place.column);
      }
    }
#pragma unroll
    for (int j = 0; j < kKeys; ++j) S[j] = widened(kept[j]);
  }
  template <bool kWhole, bool kOutgrown>
  __device__ void store(T* to, int N, const Rwkv7ThreadCoord& place) const {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      if constexpr (kOutgrown) {
        store_outgrown(to + j * N, four_of<T>(S[j]));
      } else if (kWhole || place.key + j < N) {
        store4<kWhole>(to + j * N, S[j], N - place.column);
      }
    }
  }
  // What is left of it where a chunk ends.
  __device__ void round() {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) S[j] = rounded<T>(S[j]);
  }
};

// Where a thread's part of the state lies.
template <typename T>
__device__ T* rwkv7_state(const Rwkv7Args& a, int N, const Rwkv7ThreadCoord& place) {
  const int64_t head = static_cast<int64_t>(a.seqs.slot[place.sequence]) * a.H + place.head;
  return values_of<T>(a.S) + (head * N + place.key) * N + place.column;
}

// The sums over the groups of keys, known to all of them.
__device__ inline float4 sum_of_groups(float4 x) {
#pragma unroll
  for (int offset = kRwkv7Width; offset < kWarpSize; offset *= 2) {
    x.x += __shfl_xor_sync(0xffffffffu, x.x, offset);
    x.y += __shfl_xor_sync(0xffffffffu, x.y, offset);
    x.z += __shfl_xor_sync(0xffffffffu, x.z, offset);
    x.w += __shfl_xor_sync(0xffffffffu, x.w, offset);
  }
  return x;
}

// One value of the state after a row.
struct Rwkv7Key {
  float w, b, k, r;
};
__device__ inline void advance(float& S, float& o, const Rwkv7Key& x, float u, float v) {
  S = __fmaf_rn(x.w, S, __fmaf_rn(x.b, u, __fmul_rn(x.k, v)));
  o = __fmaf_rn(x.r, S, o);
}

// A row: gives the thread's part of o of its columns, of which sum_of_groups() is all.
template <typename T, int kKeys>
__device__ float4 rwkv7_step(Rwkv7State<T, kKeys>& state, const Rwkv7Row<kKeys>& x) {
  float4 u = make_float4(0, 0, 0, 0), o = u;
#pragma unroll
  for (int j = 0; j < kKeys; ++j) {
    const float a = -x.kk[j];
    const float4& S = state.S[j];
    u.x = __fmaf_rn(a, S.x, u.x);
    u.y = __fmaf_rn(a, S.y, u.y);
    u.z = __fmaf_rn(a, S.z, u.z);
    u.w = __fmaf_rn(a, S.w, u.w);
  }
  u = sum_of_groups(u);
#pragma unroll
  for (int j = 0; j < kKeys; ++j) {
    const Rwkv7Key key = {x.w[j], x.b[j], x.k[j], x.r[j]};
    float4& S = state.S[j];
    advance(S.x, o.x, key, u.x, x.v.x);
    advance(S.y, o.y, key, u.y, x.v.y);
    advance(S.z, o.z, key, u.z, x.v.z);
    advance(S.w, o.w, key, u.w, x.v.w);
  }
  return o;
}

// Puts o of a row, of which each thread has a part.
template <bool kWhole>
__device__ void put_rwkv7_o(const Rwkv7Args& a, int N, int64_t row, const Rwkv7ThreadCoord& place,
                            const float4& part) {
  const float4 o = sum_of_groups(part);
  if (threadIdx.x % kWarpSize >= kRwkv7Width) return;  // all groups have the same
  float* to = a.o + (row * a.H + place.head) * N + place.column;
  if constexpr (kWhole) {
    *reinterpret_cast<float4*>(to) = o;
  } else {
    store4<false>(to, o, N - place.column);
  }
}

}  // namespace recurve::cuda::sm80
