#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/matrix/rwkv7.cuh"
#include "kernels/cuda/sm80/matrix/rwkv7.h"
#include "kernels/cuda/sm80/matrix/rwkv7_gate.cuh"

// A step of RWKV-7's recurrence with the gate before it and the norm behind it: a block a head of a
// sequence. Each of the three has the operations of its own kernel in the same order.
namespace recurve::cuda::sm80 {
namespace {

constexpr int kN = kWholeRwkv7, kThreads = rwkv7_threads(kN), kPairs = kN / kWarpSize;
constexpr int kBlocks = 5;  // that are to share a multiprocessor where states stream through
static_assert(kPairs == 2, "a lane has two channels");

// What the threads of a block tell each other, by channel of the head.
struct Head {
  float r[kN], w[kN], k[kN], kk[kN], b[kN], v[kN], o[kN];
};

// What a thread of warp 0 or 1 has: its own channel, and the lane's two, of which each of the warps
// sums up the head.
struct HeadChannel {
  GateChannel gate;
  float r, g, norm, bias;
  float key[kPairs], k_k[kPairs], r_k[kPairs];

  // What no kernel writes. first: of the head's channels.
  __device__ void load_weights(const Rwkv7GateArgs& a, const HeadNormBonusArgs& out, int first) {
    const int d = first + static_cast<int>(threadIdx.x);
    norm = out.w[d];
    bias = out.b[d];
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int pair = first + static_cast<int>(threadIdx.x) % kWarpSize + j * kWarpSize;
      k_k[j] = a.k_k[pair];
      r_k[j] = out.r_k[pair];
    }
  }
  // The rest. row: where the head begins in its row.
  __device__ void load(const Rwkv7GateArgs& a, const HeadNormBonusArgs& out, int64_t row,
                       int first) {
    const int d = static_cast<int>(threadIdx.x);
    gate = gate_channel(a, row + d, first + d);
    r = out.r[row + d];
    g = out.g[row + d];
#pragma unroll
    for (int j = 0; j < kPairs; ++j) key[j] = a.k[row + d % kWarpSize + j * kWarpSize];
  }
};

// The lane's part of a sum over the head, as the kernels of the gate and of the norm take it.
template <typename F>
__device__ float lane_sum(F add) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    sum = add(sum, j, static_cast<int>(threadIdx.x) % kWarpSize + j * kWarpSize);
  }
  return sum;
}

// Brings the head's row to where all threads find it.
__device__ void put_gated(Head& head, const HeadChannel& c, bool mixes) {
  const float squares = lane_sum([&](float sum, int j, int) {
    const float key = c.key[j] * c.k_k[j];
    return fmaf(key, key, sum);
  });
  const Gated gated = gate(c.gate, mixes, key_length(squares));
  const int d = static_cast<int>(threadIdx.x);
  head.r[d] = c.r;
  head.w[d] = rwkv7_decay(gated.lw);
  head.k[d] = gated.k;
  head.kk[d] = gated.kk;
  head.b[d] = rwkv7_b(gated.kk, gated.alpha);
  head.v[d] = gated.v;
}

template <int kKeys>
__device__ void take_keys(float (&to)[kKeys], const float* from) {
#pragma unroll
  for (int j = 0; j < kKeys; j += 4) {
    const float4 four = *reinterpret_cast<const float4*>(from + j);
    to[j] = four.x;
    to[j + 1] = four.y;
    to[j + 2] = four.z;
    to[j + 3] = four.w;
  }
}

// The norm of the head, its bonus and its gate.
__device__ void put_normed(const HeadNormBonusArgs& a, const Head& head, const HeadChannel& c,
                           float bonus, int64_t row) {
  const float sum = lane_sum([&](float so_far, int, int i) { return so_far + head.o[i]; });
  const float mean = warp_sum(sum) / static_cast<float>(kN);
  const float squares = lane_sum(
      [&](float so_far, int, int i) { return fmaf(head.o[i] - mean, head.o[i] - mean, so_far); });
  const float scale = norm_scale(warp_sum(squares), kN, a.eps);
  const int d = static_cast<int>(threadIdx.x);
  const float normed = fmaf((head.o[d] - mean) * scale, c.norm, c.bias);
  put(a.y, a.y_bf16, row + d, fmaf(bonus, head.v[d], normed) * c.g);
}

template <typename T, bool kOutgrown>
__global__ void __launch_bounds__(kThreads, kBlocks)
    rwkv7_cell_kernel(Rwkv7Args a, Rwkv7GateArgs gate, HeadNormBonusArgs out) {
  __shared__ __align__(16) Head head;
  const Rwkv7ThreadCoord place = rwkv7_coord<kKeysOfWhole>(a.H);
  T* const S = rwkv7_state<T>(a, kN, place);
  const int first = place.head * kN, d = static_cast<int>(threadIdx.x);
  const int64_t row = static_cast<int64_t>(place.sequence) * a.stride + first;
  const bool has_channel = d < kN;
  HeadChannel c{};
  if (has_channel) c.load_weights(gate, out, first);
  wait_for_previous();
  let_next_start();
  if (has_channel) c.load(gate, out, row, first);
  Rwkv7State<T, kKeysOfWhole> state;
  state.template load<true, kOutgrown>(S, kN, place);
  if (has_channel) put_gated(head, c, gate.m != nullptr);
  __syncthreads();
  float bonus = 0;
  if (has_channel) {
    bonus = warp_sum(lane_sum(
        [&](float so_far, int j, int i) { return fmaf(head.r[i] * head.k[i], c.r_k[j], so_far); }));
  }
  Rwkv7Row<kKeysOfWhole> x;
  take_keys(x.kk, head.kk + place.key);
  take_keys(x.b, head.b + place.key);
  take_keys(x.w, head.w + place.key);
  take_keys(x.k, head.k + place.key);
  take_keys(x.r, head.r + place.key);
  x.v = *reinterpret_cast<const float4*>(head.v + place.column);
  const float4 o = sum_of_groups(rwkv7_step(state, x));
  if (d % kWarpSize < kRwkv7Width) *reinterpret_cast<float4*>(head.o + place.column) = o;
  state.template store<true, kOutgrown>(S, kN, place);
  __syncthreads();
  if (has_channel) put_normed(out, head, c, bonus, row);
}

}  // namespace

void rwkv7_cell(const Rwkv7Args& args, Stream& stream) {
  with_state_type(args.S.dtype, [&](auto element) {
    using T = decltype(element);
    const int blocks = args.seqs.num_seqs * args.H;
    const bool outgrown = outgrows_cache<T>(int64_t{blocks} * kN * kN);
    const bool together = blocks <= kBlocks * static_cast<CudaStream&>(stream).multiprocessors();
    launch_early(stream, "rwkv7, cell",
                 outgrown ? rwkv7_cell_kernel<T, true> : rwkv7_cell_kernel<T, false>,
                 {.grid = static_cast<unsigned>(blocks),
                  .threads = kThreads,
                  .carveout = together ? cudaSharedmemCarveoutMaxShared : 25},
                 args, *args.gate, *args.out);
  });
}

}  // namespace recurve::cuda::sm80
