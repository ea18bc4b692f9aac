#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/attention/ring_attention.h"
#include "kernels/cuda/sm80/capabilities.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/vector.cuh"

// The keys that a row sees are split at places in the session that are multiples of kRingSplit, and
// each split attended to by itself, whether its keys are in the ring or rows of this call; then the
// splits are put together from the oldest to the newest. So what a row gives follows from its place
// and from what it sees alone.
namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarpSize;

// Products: lanes side by side along a key, and keys of a warp at once.
constexpr int kLanes = 8, kKeysAtOnce = 2, kWarpKeys = kKeysAtOnce * kWarpSize / kLanes;

// Values: channels of a warp at once, and of a lane.
constexpr int kFours = 2, kChannels = 4 * kFours * kWarpSize;

// What the splits of a row leave. of_row: from the first row of a launch.
struct RingParts {
  float* data;  // (rows, splits, H, D + 2): the largest product, the sum of the weights, values

  __device__ float* at(const RingAttentionArgs& a, int64_t of_row, int split, int head) const {
    return data + ((of_row * ring_splits(a.W) + split) * a.H + head) * (a.D + 2);
  }
};

// A row, and the places in the session that it sees: [first, last].
struct RowCoord {
  int64_t row;
  int sequence;
  int first, last;
};
__device__ RowCoord coord_of(const RingAttentionArgs& a, int64_t row) {
  int sequence = static_cast<int>(row);
  if (a.seqs.rows != a.seqs.num_seqs) {  // the last that begins at the row or before it
    int low = 0, high = a.seqs.num_seqs;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (a.seqs.begin[middle] <= row ? low : high) = middle;
    }
    sequence = low;
  }
  const int last = a.position[row];
  return {row, sequence, max(0, last - a.W + 1), last};
}

// Where the keys or values of a head are: those before place `start` in the ring.
struct Places {
  const float* ring;  // (W, HK, D), from the head on
  const float* rows;  // of place `start`, from the head on
  int start, W;
  int64_t width, stride;  // from a row to the next of each

  __device__ const float* at(int x) const {
    return x < start ? ring + x % W * width : rows + (x - start) * stride;
  }
};
__device__ Places places_of(const RingAttentionArgs& a, const RowCoord& coord, int head,
                            const float* ring, const float* rows, int stride) {
  const int begin = a.seqs.begin[coord.sequence];
  const int64_t width = static_cast<int64_t>(a.HK) * a.D, at = static_cast<int64_t>(head) * a.D;
  const int64_t slot = a.seqs.slot[coord.sequence];
  return {ring + slot * a.W * width + at,
          rows + static_cast<int64_t>(begin) * stride + at,
          a.position[begin],
          a.W,
          width,
          stride};
}

// Products of keys [first, end) of a split with kHeads queries, times the scale, by all warps.
// q: (kHeads, pitch) in shared memory, with zeros behind a head's channels; to: (kRingSplit,
// kPitch)
template <int kHeads, int kPitch, bool kVector>
__device__ void multiply_keys(const RingAttentionArgs& a, const Places& keys, int begin, int first,
                              int end, const float* q, int pitch, float (*to)[kPitch]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  for (int base = warp * kWarpKeys; base < kRingSplit; base += kWarps * kWarpKeys) {
    if (begin + base >= end || begin + base + kWarpKeys <= first) continue;
    const float* key[kKeysAtOnce];
    int at[kKeysAtOnce];
#pragma unroll
    for (int j = 0; j < kKeysAtOnce; ++j) {
      at[j] = base + j * kWarpSize / kLanes + lane / kLanes;
      key[j] = keys.at(min(max(begin + at[j], first), end - 1));
    }
    float sums[kKeysAtOnce][kHeads] = {};
#pragma unroll 4
    for (int d = lane % kLanes * 4; d < a.D; d += kLanes * 4) {
      float4 k[kKeysAtOnce];
#pragma unroll
      for (int j = 0; j < kKeysAtOnce; ++j) k[j] = load4<kVector>(key[j] + d, a.D - d);
#pragma unroll
      for (int head = 0; head < kHeads; ++head) {
        const float4 four = *reinterpret_cast<const float4*>(q + head * pitch + d);
#pragma unroll
        for (int j = 0; j < kKeysAtOnce; ++j) {
          float& sum = sums[j][head];
          sum = __fmaf_rn(four.x, k[j].x, sum);
          sum = __fmaf_rn(four.y, k[j].y, sum);
          sum = __fmaf_rn(four.z, k[j].z, sum);
          sum = __fmaf_rn(four.w, k[j].w, sum);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kKeysAtOnce; ++j) {
#pragma unroll
      for (int head = 0; head < kHeads; ++head) {
        float sum = sums[j][head];
#pragma unroll
        for (int offset = 1; offset < kLanes; offset *= 2) {
          sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        }
        if (lane % kLanes == 0) to[at[j]][head] = __fmul_rn(a.scale, sum);
      }
    }
  }
}

__device__ float warp_max(float value) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    value = max_of(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}

// What is largest of a head's products of places [first, end) of the split, and what is left of
// each: its weight; 0 of all others. By one warp.
template <int kPitch>
__device__ float2 weigh(float (*products)[kPitch], int head, int first, int end) {
  constexpr int kTurns = kRingSplit / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  float largest = -INFINITY, sum = 0;
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    const int x = i * kWarpSize + lane;
    if (x >= first && x < end) largest = max_of(largest, products[x][head]);
  }
  largest = warp_max(largest);
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    const int x = i * kWarpSize + lane;
    const bool there = x >= first && x < end;
    const float weight = there ? expf(products[x][head] - largest) : 0;
    products[x][head] = weight;
    sum += weight;
  }
  return make_float2(largest, warp_sum(sum));
}

// Adds weight times value of places [first, end) of the split to the sums of kHeads heads: every
// kWarps-th place, and kFours times four channels from d on, a lane.
template <int kHeads, int kPitch, bool kVector>
__device__ void add_values(float4 (&sums)[kHeads][kFours], const RingAttentionArgs& a,
                           const Places& values, int begin, int first, int end, int d,
                           const float (*weights)[kPitch]) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
#pragma unroll 4
  for (int x = warp; x < kRingSplit; x += kWarps) {
    const float* value = values.at(min(max(begin + x, first), end - 1)) + d;  // others weigh 0
    float4 v[kFours];
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      v[i] = load4<kVector>(value + 4 * i * kWarpSize, a.D - d - 4 * i * kWarpSize);
    }
#pragma unroll
    for (int head = 0; head < kHeads; ++head) {
      const float weight = weights[x][head];
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        float4& sum = sums[head][i];
        sum.x = __fmaf_rn(weight, v[i].x, sum.x);
        sum.y = __fmaf_rn(weight, v[i].y, sum.y);
        sum.z = __fmaf_rn(weight, v[i].z, sum.z);
        sum.w = __fmaf_rn(weight, v[i].w, sum.w);
      }
    }
  }
}

// Which heads of which row a block has, and which of its splits.
struct BlockCoord {
  int64_t of_row;  // from the first row of the launch
  int split;
  int key_head;
  int head, heads;  // of queries
};
template <int kHeads>
__device__ BlockCoord block_coord(const RingAttentionArgs& a) {
  const int each = a.H / a.HK, turns = (each + kHeads - 1) / kHeads;
  const int splits = ring_splits(a.W);
  const int64_t block = blockIdx.x;
  const int part = static_cast<int>(block / splits % (a.HK * turns));
  const int head = part % turns * kHeads;
  return {block / splits / (a.HK * turns), static_cast<int>(block % splits), part / turns,
          part / turns * each + head, min(kHeads, each - head)};
}

// Blocks: rows from first_row on x kHeads heads of those that share keys x splits.
template <int kHeads, bool kVector>
__global__ void __launch_bounds__(kThreads)
    ring_split_kernel(RingAttentionArgs a, int64_t first_row, RingParts parts) {
  constexpr int kPitch = (kHeads + 3) / 4 * 4 + 1;
  extern __shared__ float4 shared[];  // queries (kHeads, D), then sums (kWarps, kHeads, kChannels)
  __shared__ float weights[kRingSplit][kPitch];
  wait_for_previous();
  let_next_start();
  const BlockCoord block = block_coord<kHeads>(a);
  const RowCoord row = coord_of(a, first_row + block.of_row);
  const int begin = (row.first / kRingSplit + block.split) * kRingSplit;
  if (begin > row.last) return;
  const int first = max(begin, row.first), end = min(begin + kRingSplit, row.last + 1);
  float* const floats = reinterpret_cast<float*>(shared);
  const int pitch = (a.D + 3) / 4 * 4;
  const float* const q = a.q + row.row * a.q_stride + static_cast<int64_t>(block.head) * a.D;
  for (int d = threadIdx.x; d < pitch; d += kThreads) {
#pragma unroll
    for (int head = 0; head < kHeads; ++head) {
      const bool there = head < block.heads && d < a.D;
      floats[head * pitch + d] = there ? q[static_cast<int64_t>(head) * a.D + d] : 0;
    }
  }
  __syncthreads();
  const Places keys = places_of(a, row, block.key_head, a.ring_k, a.k, a.k_stride);
  multiply_keys<kHeads, kPitch, kVector>(a, keys, begin, first, end, floats, pitch, weights);
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  for (int head = warp; head < block.heads; head += kWarps) {
    const float2 found = weigh<kPitch>(weights, head, first - begin, end - begin);
    float* to = parts.at(a, block.of_row, block.split, block.head + head);
    if (lane == 0) to[0] = found.x, to[1] = found.y;
  }
  const Places values = places_of(a, row, block.key_head, a.ring_v, a.v, a.v_stride);
  for (int channel = 0; channel < a.D; channel += kChannels) {
    __syncthreads();  // weights are there, and no thread reads what is in the place of the sums
    float4 sums[kHeads][kFours] = {};
    add_values<kHeads, kPitch, kVector>(sums, a, values, begin, first, end, channel + 4 * lane,
                                        weights);
#pragma unroll
    for (int head = 0; head < kHeads; ++head) {
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        shared[((warp * kHeads + head) * kFours + i) * kWarpSize + lane] = sums[head][i];
      }
    }
    __syncthreads();
    const int channels = min(kChannels, a.D - channel);
    for (int head = 0; head < block.heads; ++head) {
      float* to = parts.at(a, block.of_row, block.split, block.head + head) + 2 + channel;
      for (int d = threadIdx.x; d < channels; d += kThreads) {
        const float* sum = floats + head * kChannels + d;
        float all = sum[0];
#pragma unroll
        for (int w = 1; w < kWarps; ++w) all += sum[w * kHeads * kChannels];
        to[d] = all;
      }
    }
  }
}

// Blocks: rows from first_row on x heads. Shared memory: of each split what its sums are multiplied
// by, and its sum of weights.
__global__ void __launch_bounds__(kThreads)
    ring_join_kernel(RingAttentionArgs a, int64_t first_row, RingParts parts) {
  extern __shared__ float2 of_split[];
  wait_for_previous();
  let_next_start();
  const int64_t of_row = blockIdx.x / a.H, row = first_row + of_row;
  const int head = static_cast<int>(blockIdx.x % a.H);
  const int last = a.position[row], first = max(0, last - a.W + 1);
  const int splits = last / kRingSplit - first / kRingSplit + 1;
  const int64_t step = static_cast<int64_t>(a.H) * (a.D + 2);
  const float* const part = parts.at(a, of_row, 0, head);
  if (threadIdx.x < kWarpSize) {
    float largest = -INFINITY;
    for (int s = threadIdx.x; s < splits; s += kWarpSize) {
      const float2 found = make_float2(part[s * step], part[s * step + 1]);
      of_split[s] = found;
      largest = max_of(largest, found.x);
    }
    largest = warp_max(largest);
    for (int s = threadIdx.x; s < splits; s += kWarpSize) {
      of_split[s].x = expf(of_split[s].x - largest);
    }
  }
  __syncthreads();
  float sum = 0;
  for (int s = 0; s < splits; ++s) sum = __fmaf_rn(of_split[s].x, of_split[s].y, sum);
  for (int d = threadIdx.x; d < a.D; d += kThreads) {
    float o = 0;
#pragma unroll 8
    for (int s = 0; s < splits; ++s) o = __fmaf_rn(of_split[s].x, part[s * step + 2 + d], o);
    a.o[(row * a.H + head) * a.D + d] = o / sum;
  }
}

// Rows that stay, each in its place of the ring: the last W of each sequence. Blocks: all rows.
__global__ void __launch_bounds__(kThreads) ring_keep_kernel(RingAttentionArgs a) {
  wait_for_previous();
  let_next_start();
  const int64_t row = blockIdx.x;
  const RowCoord coord = coord_of(a, row);
  if (row < static_cast<int64_t>(a.seqs.begin[coord.sequence + 1]) - a.W) return;
  const int width = a.HK * a.D;
  const int64_t place =
      (static_cast<int64_t>(a.seqs.slot[coord.sequence]) * a.W + coord.last % a.W) * width;
  for (int x = threadIdx.x; x < width; x += kThreads) {
    a.ring_k[place + x] = a.k[row * a.k_stride + x];
    a.ring_v[place + x] = a.v[row * a.v_stride + x];
  }
}

// Depends on the shape and place of the arguments alone; both forms give the same bits.
bool takes_vectors(const RingAttentionArgs& a) {
  const bool places = aligned(a.k) && aligned(a.v) && aligned(a.ring_k) && aligned(a.ring_v);
  return places && a.D % 4 == 0 && a.k_stride % 4 == 0 && a.v_stride % 4 == 0;
}

template <int kHeads>
void attend(const RingAttentionArgs& a, Stream& stream) {
  const auto kernel =
      takes_vectors(a) ? ring_split_kernel<kHeads, true> : ring_split_kernel<kHeads, false>;
  const auto scratch = static_cast<CudaStream&>(stream).scratch();
  const RingParts parts{reinterpret_cast<float*>(scratch.data())};
  const size_t queries = static_cast<size_t>(kHeads) * static_cast<size_t>(ceil_div(a.D, 4) * 4);
  const size_t sums = static_cast<size_t>(kWarps) * kHeads * kChannels;
  const size_t shared = sizeof(float) * std::max(queries, sums);
  abort_if_failed(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
      "ring_attention");
  const int64_t most = static_cast<int64_t>(scratch.size() / bytes_of_ring_row(a));
  const int64_t turns = ceil_div(a.H / a.HK, kHeads);
  for (int64_t first = 0; first < a.seqs.rows; first += most) {
    const int64_t rows = std::min(most, a.seqs.rows - first);
    const int64_t blocks = rows * a.HK * turns * ring_splits(a.W);
    launch_early(stream, "ring_attention", kernel,
                 {.grid = static_cast<unsigned>(blocks), .threads = kThreads, .shared = shared}, a,
                 first, parts);
    launch_early(stream, "ring_attention, join", ring_join_kernel,
                 {.grid = static_cast<unsigned>(rows * a.H),
                  .threads = kThreads,
                  .shared = sizeof(float2) * static_cast<size_t>(ring_splits(a.W))},
                 a, first, parts);
  }
}

}  // namespace

void run(const RingAttentionArgs& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  const int shared_by = args.H / args.HK;
  if (shared_by <= 1) {
    attend<1>(args, stream);
  } else if (shared_by <= 4) {
    attend<4>(args, stream);
  } else {
    attend<kRingHeads>(args, stream);
  }
  // All rows have been read: they may be written over.
  launch_early(stream, "ring_attention, keep", ring_keep_kernel,
               {.grid = static_cast<unsigned>(args.seqs.rows), .threads = kThreads}, args);
}

}  // namespace recurve::cuda::sm80
