// The chunk form: what the gates make of a block of rows, then the form of all matrix states.
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/matrix/chunk_weights.cuh"
#include "kernels/cuda/sm80/matrix/chunks.cuh"
#include "kernels/cuda/sm80/matrix/mlstm.cuh"
#include "kernels/cuda/sm80/matrix/mlstm.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 128;

struct RowGates {
  float i, lf;
};
__device__ RowGates gates_at(const MlstmArgs& a, int64_t row, int head) {
  const int64_t at = row * a.stride + head;
  return {gate(a.i[at], a.gate_soft_cap), log_sigmoid(gate(a.f[at], a.gate_soft_cap))};
}

// What a block of rows does to the stabiliser: m+ = max(g + m, input).
struct Change {
  float g, input;
};
__device__ Change change_of(const MlstmArgs& a, const RowBlock& rows, int head) {
  RowGates gates[kBlockRows];
#pragma unroll
  for (int j = 0; j < kBlockRows; ++j) {
    gates[j] = gates_at(a, rows.first + min(j, rows.L - 1), head);
  }
  Change change;
#pragma unroll
  for (int j = kBlockRows - 1; j >= 0; --j) {
    if (j >= rows.L) continue;
    const bool last = j == rows.L - 1;
    change.input = last ? gates[j].i : fmaxf(change.input, change.g + gates[j].i);
    change.g = last ? gates[j].lf : change.g + gates[j].lf;
  }
  return change;
}

// A block: the stabiliser of one head of one sequence, before each block of rows and after them.
// m: (sequences blocks, H)
__global__ void __launch_bounds__(kThreads)
    stabiliser_kernel(MlstmArgs a, int first_block, int blocks, float* m) {
  __shared__ Change changes[kThreads];
  let_next_start();
  wait_for_previous();
  const int head = static_cast<int>(blockIdx.x) % a.H;
  const int sequence = static_cast<int>(blockIdx.x) / a.H, thread = static_cast<int>(threadIdx.x);
  float& state = a.m[static_cast<int64_t>(a.seqs.slot[sequence]) * a.H + head];
  float now = state;
  for (int base = 0; base < blocks; base += kThreads) {
    const int mine = base + thread;
    const RowBlock rows =
        mine < blocks ? row_block(a.seqs, a.chunk, sequence, first_block + mine) : RowBlock{0, 0};
    if (rows.L > 0) changes[thread] = change_of(a, rows, head);
    const int count = __syncthreads_count(rows.L > 0);
    for (int i = 0; thread == 0 && i < count; ++i) {
      m[(static_cast<int64_t>(sequence) * blocks + base + i) * a.H + head] = now;
      now = max_of(changes[i].g + now, changes[i].input);
    }
    __syncthreads();
  }
  if (thread == 0) state = now;
}

// What rows of a block of L rows weigh in addition to their products: relative to the stabiliser.
struct Weighing {
  const float *lf, *i;  // (L)
  const float* m;       // (L) after each row
  float before, after;  // m around the block
  int L;
  __device__ float pair(int t, int j) const { return expf(sum_back(lf, t, j + 1) + i[j] - m[t]); }
  __device__ float of_state(int t) const { return expf(sum_back(lf, t, 0) + before - m[t]); }
  __device__ float in_state(int j) const { return expf(sum_back(lf, L - 1, j + 1) + i[j] - after); }
  __device__ float state_after() const { return expf(sum_back(lf, L - 1, 0) + before - after); }
  __device__ float floor(int t) const { return expf(-m[t]); }

  // The stabiliser after row t.
  __device__ float m_at(int t) const {
    float tokens = i[t], g = lf[t];
    for (int j = t - 1; j >= 0; --j) {
      tokens = fmaxf(tokens, g + i[j]);
      g += lf[j];
    }
    return max_of(g + before, tokens);
  }
};

// A block: a head of a block of rows.
__global__ void __launch_bounds__(kWeightThreads)
    weights_kernel(MlstmArgs a, int first_block, int blocks, const float* before,
                   BlockWeights* weights) {
  __shared__ float lf[kBlockRows], i[kBlockRows], m[kBlockRows];
  let_next_start();
  wait_for_previous();
  const int head = static_cast<int>(blockIdx.x) % a.H;
  const int number = static_cast<int>(blockIdx.x) / a.H, t = static_cast<int>(threadIdx.x);
  const RowBlock rows = row_block(a.seqs, a.chunk, number / blocks, first_block + number % blocks);
  if (rows.L == 0) return;
  if (t < rows.L) {
    const RowGates gates = gates_at(a, rows.first + t, head);
    lf[t] = gates.lf;
    i[t] = gates.i;
  }
  __syncthreads();
  Weighing weighing{lf, i, m, before[blockIdx.x], 0, rows.L};
  if (t < rows.L) m[t] = weighing.m_at(t);
  __syncthreads();
  weighing.after = m[rows.L - 1];
  const int64_t inputs = static_cast<int64_t>(rows.first) * a.stride;
  const float *q = a.q + inputs + head * a.DK, *k = a.k + inputs + head * a.DK;
  weights_of_block(
      rows.L, a.DK, 1.0f / sqrtf(static_cast<float>(a.DK)), weighing,
      [&](int row, int x) { return q[static_cast<int64_t>(row) * a.stride + x]; },
      [&](int row, int x) { return k[static_cast<int64_t>(row) * a.stride + x]; },
      weights[blockIdx.x]);
}

}  // namespace

void mlstm_chunks(const MlstmArgs& args, Stream& stream) {
  const std::span<std::byte> scratch = static_cast<CudaStream&>(stream).scratch();
  const auto H = static_cast<size_t>(args.H);
  const auto launch = [&](const Ragged& seqs, int first_block, int blocks) {
    MlstmArgs part = args;
    part.seqs = seqs;
    const unsigned heads = static_cast<unsigned>(seqs.num_seqs * blocks * args.H);
    auto* weights = reinterpret_cast<BlockWeights*>(scratch.data());
    auto* m = reinterpret_cast<float*>(weights + heads);
    launch_early(stream, "mlstm, stabilisers of chunks", stabiliser_kernel,
                 {.grid = static_cast<unsigned>(seqs.num_seqs * args.H), .threads = kThreads}, part,
                 first_block, blocks, m);
    launch_early(stream, "mlstm, weights of chunks", weights_kernel,
                 {.grid = heads, .threads = kWeightThreads}, part, first_block, blocks, m, weights);
    matrix_chunks({.seqs = seqs,
                   .H = args.H,
                   .DK = args.DK,
                   .DV = args.DV,
                   .chunk = args.chunk,
                   .first_block = first_block,
                   .blocks = blocks,
                   .weights = weights,
                   .F = nullptr,
                   .q = {args.q, args.stride, 1, args.DK},
                   .k = {args.k, args.stride, 1, args.DK},
                   .by_block = false,
                   .v = {args.v, args.stride, 1, args.DV},
                   .S = args.C,
                   .keys_inner = false,
                   .z = args.n,
                   .eps = args.eps,
                   .bounded = true,
                   .skip = nullptr,
                   .o = args.h},
                  stream);
  };
  for_each_wave(args.seqs, args.chunk, (sizeof(BlockWeights) + sizeof(float)) * H, scratch.size(),
                launch);
}

}  // namespace recurve::cuda::sm80
