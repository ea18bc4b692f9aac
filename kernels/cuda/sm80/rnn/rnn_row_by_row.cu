// A launch a row. All channels of a head read the outputs of all of them before, which are in y
// from the second row on.
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/rnn/rnn.cuh"
#include "kernels/cuda/sm80/rnn/rnn.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kWarps = 8;  // a block: each has one channel
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kSequences = kWarpSize / kMostGates;  // a block
constexpr int kSlab = 512;                          // of h, in shared memory at a time
constexpr unsigned kAll = 0xffffffffu;              // lanes

// The sums over the lanes of 32 values: lane i gets that of value i.
__device__ float transposed_sum(float (&values)[kWarpSize]) {
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int level = 1; level < kWarpSize; level *= 2) {
    const int half = kWarpSize / 2 / level;
    const bool upper = (lane & half) != 0;
#pragma unroll
    for (int j = 0; j < kWarpSize / 2; ++j) {
      if (j >= half) break;
      const float kept = upper ? values[j + half] : values[j];
      const float given = upper ? values[j] : values[j + half];
      values[j] = kept + __shfl_xor_sync(kAll, given, half);
    }
  }
  return values[0];
}

// Row t of the sequences that have it. Blocks: heads x groups of sequences x pieces of kWarps
// channels. Of the 32 products of a warp, number gate * kSequences + sequence is lane's.
template <typename Weight, bool kVector>
__global__ void __launch_bounds__(kThreads) row_kernel(RnnArgs a, int t, int pieces) {
  __shared__ float4 h4[kSequences][kSlab / 4];
  let_next_start();
  wait_for_previous();
  const int piece = blockIdx.x % pieces, head = blockIdx.x / pieces % a.H;
  const int first = static_cast<int>(blockIdx.x) / pieces / a.H * kSequences;
  const int lane = threadIdx.x % kWarpSize;
  const int d = piece * kWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  const int gates = gates_at(a);

  // Where h before the row is, for each sequence; null: it has no such row.
  __shared__ const float* before[kSequences];
  if (threadIdx.x < kSequences) {
    const int b = first + static_cast<int>(threadIdx.x);
    const float* from = nullptr;
    if (b < a.seqs.num_seqs && a.seqs.begin[b] + t < a.seqs.begin[b + 1]) {
      const float* rows = t == 0 ? a.h : a.y;
      const int64_t row = t == 0 ? a.seqs.slot[b] : a.seqs.begin[b] + t - 1;
      from = rows + (row * a.H + head) * a.DH;
    }
    before[threadIdx.x] = from;
  }
  __syncthreads();
  bool any = false;
  for (int b = 0; b < kSequences; ++b) any |= before[b] != nullptr;
  if (!any) return;

  float sum[kWarpSize] = {};
  for (int base = 0; base < a.DH; base += kSlab) {
    float* h = reinterpret_cast<float*>(h4);
    for (int at = threadIdx.x; at < kSequences * kSlab; at += kThreads) {
      const float* from = before[at / kSlab];
      const int k = base + at % kSlab;
      h[at] = from != nullptr && k < a.DH ? from[k] : 0;
    }
    __syncthreads();
    const int end = min(kSlab, a.DH - base);
    for (int k = 4 * lane; k < end && d < a.DH; k += 4 * kWarpSize) {
      float4 R[kMostGates];
#pragma unroll
      for (int gate = 0; gate < kMostGates; ++gate) {
        const int64_t row = (static_cast<int64_t>(head) * gates + gate) * a.DH + d;
        R[gate] = gate < gates ? four_weights<Weight, kVector>(a, row * a.DH + base + k, end - k)
                               : make_float4(0, 0, 0, 0);
      }
#pragma unroll
      for (int b = 0; b < kSequences; ++b) {
        const float4 from = h4[b][k / 4];
#pragma unroll
        for (int gate = 0; gate < kMostGates; ++gate) {
          float& product = sum[gate * kSequences + b];
          product = __fmaf_rn(R[gate].x, from.x, product);
          product = __fmaf_rn(R[gate].y, from.y, product);
          product = __fmaf_rn(R[gate].z, from.z, product);
          product = __fmaf_rn(R[gate].w, from.w, product);
        }
      }
    }
    __syncthreads();  // before the next slab
  }
  if (d >= a.DH) return;  // a whole warp

  // The first kSequences lanes have a sequence each.
  const float mine = transposed_sum(sum);
  const int b = lane % kSequences;
  float s[kMostGates];
#pragma unroll
  for (int gate = 0; gate < kMostGates; ++gate) {
    s[gate] = __shfl_sync(kAll, mine, gate * kSequences + b);
    if (gate < gates && a.b != nullptr) {
      s[gate] += a.b[(static_cast<int64_t>(gate) * a.H + head) * a.DH + d];
    }
  }
  if (lane >= kSequences || before[b] == nullptr) return;
  const int64_t row = static_cast<int64_t>(a.seqs.begin[first + b]) + t;
  const int64_t state = (static_cast<int64_t>(a.seqs.slot[first + b]) * a.H + head) * a.DH + d;
  float x[kMostGates];
#pragma unroll
  for (int gate = 0; gate < kMostGates; ++gate) {
    if (gate >= gates) break;
    x[gate] = a.x[row * a.x_stride + (static_cast<int64_t>(gate) * a.H + head) * a.DH + d];
  }
  RnnChannel channel = channel_at(a, state);
  a.y[(row * a.H + head) * a.DH + d] = next_h(a, x, s, before[b][d], channel);
  put_channel(a, state, channel);
}

template <typename Weight>
void launch_rows(const RnnArgs& args, Stream& stream) {
  const int pieces = ceil_div(args.DH, kWarps);
  const int groups = ceil_div(args.seqs.num_seqs, kSequences);
  const auto kernel = args.DH % 4 == 0 ? row_kernel<Weight, true> : row_kernel<Weight, false>;
  for (int t = 0; t < args.seqs.max_len; ++t) {
    launch_early(stream, "rnn, row", kernel,
                 {.grid = static_cast<unsigned>(groups * args.H * pieces), .threads = kThreads},
                 args, t, pieces);
  }
}

}  // namespace

void rnn_row_by_row(const RnnArgs& args, Stream& stream) {
  if (args.R.dtype == DType::kBF16) {
    launch_rows<uint16_t>(args, stream);
  } else {
    launch_rows<float>(args, stream);
  }
  rnn_keep_last_rows(args, stream);
}

}  // namespace recurve::cuda::sm80
