#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/capabilities.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/rwkv7.h"
#include "kernels/cuda/sm80/vector.cuh"

// The step form throughout, with the state in registers from the first row of a sequence to its
// last. Columns of a state know nothing of each other, so a warp has some of them with all keys,
// and the sums over keys stay inside it: a thread has four columns of some keys side by side. Every
// form computes a row by the same operations in the same order, so that they may take turns.
namespace recurve::cuda::sm80 {
namespace {

constexpr int kWidth = 4;                    // threads side by side
constexpr int kColumns = 4 * kWidth;         // of a warp
constexpr int kGroups = kWarpSize / kWidth;  // of keys

// Of a block, which has a head: warps side by side.
constexpr int threads_of(int N) { return ceil_div(N, kColumns) * kWarpSize; }

// A head of a sequence, and which keys and columns of it a thread has, from these on.
struct Place {
  int sequence, head, key, column;
};

// kWhole: a head fills the keys and columns of its warps, and everything begins at multiples of 16
// bytes. Elsewhere there are zeros.
template <bool kWhole>
__device__ float4 load_inputs(const float* from, int count) {
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

// What a thread needs of a row.
template <int kKeys>
struct Row {
  float r[kKeys], lw[kKeys], k[kKeys], kk[kKeys], alpha[kKeys];
  float4 v;
};
template <bool kWhole, int kKeys>
__device__ void load_row(Row<kKeys>& x, const Rwkv7Args& a, int64_t row, const Place& place) {
  const int64_t head = row * a.stride + static_cast<int64_t>(place.head) * a.N;
  const int64_t at = head + place.key;
  const int keys = a.N - place.key;
  load_keys<kWhole>(x.kk, a.kk + at, keys);
  load_keys<kWhole>(x.alpha, a.alpha + at, keys);
  load_keys<kWhole>(x.lw, a.lw + at, keys);
  load_keys<kWhole>(x.k, a.k + at, keys);
  load_keys<kWhole>(x.r, a.r + at, keys);
  x.v = load_inputs<kWhole>(a.v + head + place.column, a.N - place.column);
}

// What a thread has of a state: four columns of each of its keys.
template <typename T, int kKeys>
struct State {
  float4 S[kKeys];

  template <bool kWhole, bool kOutgrown>
  __device__ void load(const T* from, int N, const Place& place) {
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
  __device__ void store(T* to, int N, const Place& place) const {
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

// The sums over the groups of keys, known to all of them.
__device__ inline float4 sum_of_groups(float4 x) {
#pragma unroll
  for (int offset = kWidth; offset < kWarpSize; offset *= 2) {
    x.x += __shfl_xor_sync(0xffffffffu, x.x, offset);
    x.y += __shfl_xor_sync(0xffffffffu, x.y, offset);
    x.z += __shfl_xor_sync(0xffffffffu, x.z, offset);
    x.w += __shfl_xor_sync(0xffffffffu, x.w, offset);
  }
  return x;
}

// One value of the state after a row.
struct KeyWeights {
  float w, b, k, r;
};
__device__ inline void advance(float& S, float& o, const KeyWeights& x, float u, float v) {
  S = __fmaf_rn(x.w, S, __fmaf_rn(x.b, u, __fmul_rn(x.k, v)));
  o = __fmaf_rn(x.r, S, o);
}

// A row: gives o of the thread's columns.
template <typename T, int kKeys>
__device__ float4 step(State<T, kKeys>& state, const Row<kKeys>& x) {
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
    const KeyWeights key = {expf(x.lw[j]), __fmul_rn(x.kk[j], x.alpha[j]), x.k[j], x.r[j]};
    float4& S = state.S[j];
    advance(S.x, o.x, key, u.x, x.v.x);
    advance(S.y, o.y, key, u.y, x.v.y);
    advance(S.z, o.z, key, u.z, x.v.z);
    advance(S.w, o.w, key, u.w, x.v.w);
  }
  return sum_of_groups(o);
}

// A block a head of a sequence. kStep: sequences have one row each. kOutgrown: see vector.cuh.
template <typename T, int kKeys, bool kWhole, bool kOutgrown, bool kStep>
__global__ void __launch_bounds__(threads_of(kGroups* kKeys), kStep&& kWhole ? 5 : 1)
    rwkv7_kernel(Rwkv7Args a) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const Place place = {static_cast<int>(blockIdx.x) / a.H, static_cast<int>(blockIdx.x) % a.H,
                       lane / kWidth * kKeys, warp * kColumns + lane % kWidth * 4};
  const int N = kWhole ? kGroups * kKeys : a.N;
  const int64_t head = static_cast<int64_t>(a.seqs.slot[place.sequence]) * a.H + place.head;
  T* const S = values_of<T>(a.S) + (head * N + place.key) * N + place.column;
  const bool writes = lane < kWidth;  // o, of the columns
  const auto put_o = [&](int64_t row, const float4& o) {
    float* to = a.o + (row * a.H + place.head) * N + place.column;
    if (writes) store4<kWhole>(to, o, N - place.column);
  };
  wait_for_previous();
  let_next_start();
  State<T, kKeys> state;
  state.template load<kWhole, kOutgrown>(S, N, place);
  Row<kKeys> x;
  if constexpr (kStep) {
    load_row<kWhole>(x, a, place.sequence, place);
    put_o(place.sequence, step(state, x));
  } else {
    const int begin = a.seqs.begin[place.sequence], end = a.seqs.begin[place.sequence + 1];
    load_row<kWhole>(x, a, begin, place);
    for (int row = begin; row < end; ++row) {
      Row<kKeys> next;
      load_row<kWhole>(next, a, min(row + 1, end - 1), place);
      put_o(row, step(state, x));
      if ((row + 1 - begin) % a.chunk == 0) state.round();
      x = next;
    }
  }
  state.template store<kWhole, kOutgrown>(S, N, place);
}

template <typename T, int kKeys, bool kWhole>
auto kernel_for(const Rwkv7Args& a) {
  const bool steps = a.seqs.max_len == 1;
  if constexpr (kWhole) {
    if (steps && outgrows_cache<T>(int64_t{a.seqs.num_seqs} * a.H * a.N * a.N)) {
      return rwkv7_kernel<T, kKeys, true, true, true>;
    }
  }
  return steps ? rwkv7_kernel<T, kKeys, kWhole, false, true>
               : rwkv7_kernel<T, kKeys, kWhole, false, false>;
}

// Depends on the shape and place of the arguments alone.
bool is_whole(const Rwkv7Args& a) {
  const bool places = aligned(a.r) && aligned(a.lw) && aligned(a.k) && aligned(a.v) &&
                      aligned(a.kk) && aligned(a.alpha) && aligned(a.o) && aligned(a.S.data);
  return a.N == kGroups * 8 && a.stride % 4 == 0 && places;
}

}  // namespace

void run(const Rwkv7Args& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  with_state_type(args.S.dtype, [&](auto element) {
    using T = decltype(element);
    auto kernel = args.N > kGroups * 8 ? kernel_for<T, 16, false>(args)
                  : is_whole(args)     ? kernel_for<T, 8, true>(args)
                                       : kernel_for<T, 8, false>(args);
    // Where more blocks than run at once stream through states, loads on their way take the cache.
    const int blocks = args.seqs.num_seqs * args.H;
    const bool beside = blocks <= 4 * static_cast<CudaStream&>(stream).multiprocessors();
    launch_early(stream, "rwkv7", kernel,
                 {.grid = static_cast<unsigned>(blocks),
                  .threads = static_cast<unsigned>(threads_of(args.N)),
                  .carveout = beside ? cudaSharedmemCarveoutMaxShared : 25},
                 args);
  });
}

}  // namespace recurve::cuda::sm80
