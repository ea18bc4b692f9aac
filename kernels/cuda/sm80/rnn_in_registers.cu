// One launch for all rows: a block keeps the matrices of a head in registers, a row of a gate's
// matrix a thread, and the outputs of a few sequences in shared memory.
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/rnn.cuh"
#include "kernels/cuda/sm80/rnn.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kSequences = 8;  // a block

// kDH: DH, or the next size there is a kernel for. kVector: DH is a multiple of 4.
template <int kDH, typename Weight, bool kVector>
__global__ void __launch_bounds__(kMostGates* kDH) registers_kernel(RnnArgs a) {
  constexpr int kPairs = kSequences / kMostGates;  // of sequence and channel, a thread
  __shared__ float4 h4[kSequences][kDH / 4];       // h, zeros beyond DH
  __shared__ float s[kSequences][kMostGates][kDH];
  float(*h)[kDH] = reinterpret_cast<float(*)[kDH]>(h4);
  let_next_start();
  const int thread = static_cast<int>(threadIdx.x);
  const int head = blockIdx.x % a.H, first = static_cast<int>(blockIdx.x) / a.H * kSequences;
  const int sequences = min(kSequences, a.seqs.num_seqs - first);
  const int gates = static_cast<int>(a.R.N / (static_cast<int64_t>(a.H) * a.DH));

  // As a row of the matrix.
  const int gate = thread / kDH, d_row = thread % kDH;
  const bool has_row = gate < gates && d_row < a.DH;
  float4 R[kDH / 4];
#pragma unroll
  for (int k = 0; k < kDH / 4; ++k) {
    const int64_t row = (static_cast<int64_t>(head) * gates + gate) * a.DH + d_row;
    R[k] = four_weights<Weight, kVector>(a, row * a.DH + 4 * k, has_row ? a.DH - 4 * k : 0);
  }
  const float bias =
      has_row && a.b != nullptr ? a.b[(static_cast<int64_t>(gate) * a.H + head) * a.DH + d_row] : 0;

  // As the channel d_row of some sequences: thread / kDH and every fourth after it.
  RnnChannel channel[kPairs];
  int begin[kPairs], length[kPairs];
  int64_t state[kPairs];
  int rows = 0;  // of the longest sequence
#pragma unroll
  for (int b = 0; b < kSequences; ++b) {
    if (b >= sequences) break;
    rows = max(rows, a.seqs.begin[first + b + 1] - a.seqs.begin[first + b]);
  }
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    const int b = gate + pair * kMostGates;
    length[pair] = 0;
    if (b >= sequences || d_row >= a.DH) continue;
    begin[pair] = a.seqs.begin[first + b];
    length[pair] = a.seqs.begin[first + b + 1] - begin[pair];
    state[pair] = (static_cast<int64_t>(a.seqs.slot[first + b]) * a.H + head) * a.DH + d_row;
  }
  wait_for_previous();

  float next_x[kPairs][kMostGates];  // on its way during the row before
  const auto load_x = [&](int t) {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
      for (int j = 0; j < kMostGates; ++j) {
        if (t >= length[pair] || j >= gates) continue;
        next_x[pair][j] = a.x[(static_cast<int64_t>(begin[pair]) + t) * a.x_stride +
                              (static_cast<int64_t>(j) * a.H + head) * a.DH + d_row];
      }
    }
  };
  load_x(0);
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    float& own = h[gate + pair * kMostGates][d_row];
    own = 0;
    if (length[pair] == 0) continue;
    channel[pair] = channel_at(a, state[pair]);
    own = a.h[state[pair]];
  }
  __syncthreads();
  for (int t = 0; t < rows; ++t) {
    float x[kPairs][kMostGates];
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
      for (int j = 0; j < kMostGates; ++j) x[pair][j] = next_x[pair][j];
    }
    load_x(t + 1);
    for (int b = 0; b < sequences; ++b) {
      // Four sums, so that a product need not wait for the one before.
      float4 sum = make_float4(bias, 0, 0, 0);
#pragma unroll
      for (int k = 0; k < kDH / 4; ++k) {
        const float4 from = h4[b][k];
        sum.x = __fmaf_rn(R[k].x, from.x, sum.x);
        sum.y = __fmaf_rn(R[k].y, from.y, sum.y);
        sum.z = __fmaf_rn(R[k].z, from.z, sum.z);
        sum.w = __fmaf_rn(R[k].w, from.w, sum.w);
      }
      s[b][gate][d_row] = (sum.x + sum.y) + (sum.z + sum.w);
    }
    __syncthreads();
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int b = gate + pair * kMostGates;
      if (t >= length[pair]) continue;
      const float from_state[kMostGates] = {s[b][0][d_row], s[b][1][d_row], s[b][2][d_row],
                                            s[b][3][d_row]};
      const float next = next_h(a, x[pair], from_state, h[b][d_row], channel[pair]);
      h[b][d_row] = next;
      a.y[((static_cast<int64_t>(begin[pair]) + t) * a.H + head) * a.DH + d_row] = next;
    }
    __syncthreads();
  }
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    if (length[pair] == 0) continue;
    put_channel(a, state[pair], channel[pair]);
    a.h[state[pair]] = h[gate + pair * kMostGates][d_row];
  }
}

template <int kDH>
void launch(const RnnArgs& args, Stream& stream) {
  const int blocks = (args.seqs.num_seqs + kSequences - 1) / kSequences * args.H;
  const bool vector = args.DH % 4 == 0;
  auto kernel = vector ? registers_kernel<kDH, float, true> : registers_kernel<kDH, float, false>;
  if (args.R.dtype == DType::kBF16) {
    kernel =
        vector ? registers_kernel<kDH, uint16_t, true> : registers_kernel<kDH, uint16_t, false>;
  }
  launch_early(stream, "rnn", kernel,
               {.grid = static_cast<unsigned>(blocks), .threads = kMostGates * kDH}, args);
}

}  // namespace

void rnn_in_registers(const RnnArgs& args, Stream& stream) {
  if (args.DH <= 32) {
    launch<32>(args, stream);
  } else {
    launch<64>(args, stream);
  }
}

}  // namespace recurve::cuda::sm80
