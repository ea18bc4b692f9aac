// One launch for all rows: a block keeps the matrices of a head in registers and the outputs of a
// few sequences in shared memory. Four adjacent threads have four rows of a gate's matrix,
// a quarter of each, so that what they read of the outputs serves four products.
#include <algorithm>

#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/rnn/rnn.cuh"
#include "kernels/cuda/sm80/rnn/rnn.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kSequences = 8;  // that a block has at once, at most

// The part of a thread in the rows of some sequences: channel threadIdx.x % kDH of each
// kMostGates-th of them.
template <int kDH>
struct Pairs {
  static constexpr int kCount = kSequences / kMostGates;
  RnnChannel channel[kCount];
  int begin[kCount], length[kCount];
  int64_t state[kCount];
  int rows = 1;  // of the longest sequence

  // Where the sequences [first, first + sequences) are.
  __device__ Pairs(const RnnArgs& a, int head, int first, int sequences) {
    const int d = threadIdx.x % kDH;
    for (int b = 0; a.seqs.max_len > 1 && b < sequences; ++b) {
      rows = max(rows, a.seqs.begin[first + b + 1] - a.seqs.begin[first + b]);
    }
#pragma unroll
    for (int pair = 0; pair < kCount; ++pair) {
      const int b = number(pair);
      length[pair] = 0;
      if (b >= sequences || d >= a.DH) continue;
      begin[pair] = a.seqs.begin[first + b];
      length[pair] = a.seqs.begin[first + b + 1] - begin[pair];
      state[pair] = (static_cast<int64_t>(a.seqs.slot[first + b]) * a.H + head) * a.DH + d;
    }
  }
  __device__ static int number(int pair) { return threadIdx.x / kDH + pair * kMostGates; }
};

constexpr int kQuad = 4;  // threads that share their rows of the matrix

// The sum over these threads of the value whose number is this thread's among them.
__device__ float own_of_four(const float (&values)[kQuad]) {
  const bool odd = threadIdx.x % 2 != 0, high = threadIdx.x % kQuad >= 2;
  const auto exchange = [](bool upper, float low, float high, int other) {
    const float got = __shfl_xor_sync(0xffffffffu, upper ? low : high, other);
    return (upper ? high : low) + got;
  };
  const float first = exchange(odd, values[0], values[1], 1);
  const float second = exchange(odd, values[2], values[3], 1);
  return exchange(high, first, second, 2);
}

// Blocks: heads x `blocks`, each with every blocks-th group of `each` sequences in turn. kDH: DH,
// or the next size there is a kernel for. kVector: DH is a multiple of 4.
template <int kDH, typename Weight, bool kVector>
__global__ void __launch_bounds__(kMostGates* kDH, 2)
    registers_kernel(RnnArgs a, int each, int blocks) {
  constexpr int kPairs = Pairs<kDH>::kCount;
  __shared__ float4 h4[kSequences][kDH / 4];  // h, zeros beyond DH
  __shared__ float s[kSequences][kMostGates][kDH];
  float(*h)[kDH] = reinterpret_cast<float(*)[kDH]>(h4);
  let_next_start();
  const int thread = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.x) % a.H;
  const int gates = gates_at(a);

  // A thread holds parts of the rows of the matrix of kQuad threads: R[j][i] is of the j-th of
  // these, the four values with the number kQuad i + part. The sum of a thread's own row comes to
  // it in the end.
  const int gate = thread / kDH, d_row = thread % kDH, part = thread % kQuad;
  const bool has_row = gate < gates && d_row < a.DH;
  constexpr int kFours = kDH / 4 / kQuad;
  float4 R[kQuad][kFours];
#pragma unroll
  for (int j = 0; j < kQuad; ++j) {
    const int d = d_row - part + j;
    const int64_t row = (static_cast<int64_t>(head) * gates + gate) * a.DH + d;
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const int k = 4 * (kQuad * i + part);
      R[j][i] =
          four_weights<Weight, kVector>(a, row * a.DH + k, gate < gates && d < a.DH ? a.DH - k : 0);
    }
  }
  const float bias =
      has_row && a.b != nullptr ? a.b[(static_cast<int64_t>(gate) * a.H + head) * a.DH + d_row] : 0;

  for (int first = static_cast<int>(blockIdx.x) / a.H * each; first < a.seqs.num_seqs;
       first += blocks * each) {
    const int sequences = min(each, a.seqs.num_seqs - first);
    Pairs<kDH> mine(a, head, first, sequences);
    wait_for_previous();

    float next_x[kPairs][kMostGates];  // on its way during the row before
    const auto load_x = [&](int t) {
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
        for (int j = 0; j < kMostGates; ++j) {
          if (t >= mine.length[pair] || j >= gates) continue;
          next_x[pair][j] = a.x[(static_cast<int64_t>(mine.begin[pair]) + t) * a.x_stride +
                                (static_cast<int64_t>(j) * a.H + head) * a.DH + d_row];
        }
      }
    };
    load_x(0);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      float& own = h[mine.number(pair)][d_row];
      own = 0;
      if (mine.length[pair] == 0) continue;
      mine.channel[pair] = channel_at(a, mine.state[pair]);
      own = a.h[mine.state[pair]];
    }
    __syncthreads();
    for (int t = 0; t < mine.rows; ++t) {
      float x[kPairs][kMostGates];
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
        for (int j = 0; j < kMostGates; ++j) x[pair][j] = next_x[pair][j];
      }
      load_x(t + 1);
      for (int b = 0; b < sequences; ++b) {
        float sums[kQuad] = {};
#pragma unroll
        for (int i = 0; i < kFours; ++i) {
          const float4 from = h4[b][kQuad * i + part];
#pragma unroll
          for (int j = 0; j < kQuad; ++j) {
            sums[j] = __fmaf_rn(R[j][i].x, from.x, sums[j]);
            sums[j] = __fmaf_rn(R[j][i].y, from.y, sums[j]);
            sums[j] = __fmaf_rn(R[j][i].z, from.z, sums[j]);
            sums[j] = __fmaf_rn(R[j][i].w, from.w, sums[j]);
          }
        }
        s[b][gate][d_row] = own_of_four(sums) + bias;
      }
      __syncthreads();
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const int b = mine.number(pair);
        if (t >= mine.length[pair]) continue;
        const float from_state[kMostGates] = {s[b][0][d_row], s[b][1][d_row], s[b][2][d_row],
                                              s[b][3][d_row]};
        const float next = next_h(a, x[pair], from_state, h[b][d_row], mine.channel[pair]);
        h[b][d_row] = next;
        a.y[((static_cast<int64_t>(mine.begin[pair]) + t) * a.H + head) * a.DH + d_row] = next;
      }
      __syncthreads();
    }
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      if (mine.length[pair] == 0) continue;
      put_channel(a, mine.state[pair], mine.channel[pair]);
      a.h[mine.state[pair]] = h[mine.number(pair)][d_row];
    }
  }
}

template <int kDH>
void launch(const RnnArgs& args, Stream& stream) {
  // So few sequences a block that all multiprocessors have some: one block on each, as resources
  // remain then for the kernels behind to begin, or two where there is work for them.
  const auto most_of = [&](int blocks) { return std::max(1, blocks / args.H); };  // of a head
  const int multiprocessors = static_cast<CudaStream&>(stream).multiprocessors();
  const bool many = args.seqs.num_seqs > kSequences * most_of(multiprocessors);
  const int most = most_of(many ? 2 * multiprocessors : multiprocessors);
  const int each = std::min(kSequences, ceil_div(args.seqs.num_seqs, most));
  const int groups = ceil_div(args.seqs.num_seqs, each);
  const int blocks = ceil_div(groups, ceil_div(groups, most));
  const bool vector = args.DH % 4 == 0;
  auto kernel = vector ? registers_kernel<kDH, float, true> : registers_kernel<kDH, float, false>;
  if (args.R.dtype == DType::kBF16) {
    kernel =
        vector ? registers_kernel<kDH, uint16_t, true> : registers_kernel<kDH, uint16_t, false>;
  }
  launch_early(stream, "rnn", kernel,
               {.grid = static_cast<unsigned>(blocks * args.H), .threads = kMostGates * kDH}, args,
               each, blocks);
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
