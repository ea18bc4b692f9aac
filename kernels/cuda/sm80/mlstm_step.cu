#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/head_norm_gate.cuh"
#include "kernels/cuda/sm80/mlstm.cuh"
#include "kernels/cuda/sm80/mlstm.h"
#include "kernels/cuda/sm80/vector.cuh"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 64;                        // of C, a block; a thread has 4 side by side
constexpr int kGroups = kThreads / (kColumns / 4);  // threads above each other
constexpr int kHeld = 16;                           // rows of C that a thread holds
constexpr int kSlab = kHeld * kGroups;              // rows of C that a block holds
constexpr unsigned kFirstBlocks = 256;              // about as many as run at once

// A block: kColumns columns of C of one head of one sequence. The state is on its way while the
// gates are computed, and is read and written once a row of DK <= kSlab. kVector: rows of C begin
// at multiples of 16 bytes.
template <bool kVector>
__global__ void __launch_bounds__(kThreads, 2) step_kernel(MlstmArgs a, int tiles) {
  extern __shared__ float shared[];  // qs, I k, n: (DK) each
  __shared__ float4 sums[kThreads / kWarpSize][kColumns / 4];
  let_next_start();
  const int tile = blockIdx.x % tiles, head = blockIdx.x / tiles % a.H;
  const int sequence = blockIdx.x / tiles / a.H;
  if (blockIdx.x < kFirstBlocks) {  // the others find the kernel before this one gone
    const int64_t state = static_cast<int64_t>(a.seqs.slot[sequence]) * a.H + head;
    const float* C = static_cast<const float*>(a.C.data) + state * a.DK * a.DV + tile * kColumns;
    for (int x = threadIdx.x; x < a.DK; x += kThreads) {
      for (int line = 0; line < kColumns; line += 32) {
        if (tile * kColumns + line < a.DV)
          prefetch_to_l2(C + static_cast<int64_t>(x) * a.DV + line);
      }
    }
  }
  wait_for_previous();
  const StepRows rows = step_rows(a.seqs, a.chunk, sequence);
  if (rows.first == rows.end) return;

  float* qs = shared;
  float* Ik = qs + a.DK;
  float* n = Ik + a.DK;
  const int64_t state = static_cast<int64_t>(a.seqs.slot[sequence]) * a.H + head;
  const int group = threadIdx.x / (kColumns / 4);
  const int d = tile * kColumns + threadIdx.x % (kColumns / 4) * 4, columns = a.DV - d;
  float* C = static_cast<float*>(a.C.data) + state * a.DK * a.DV + d;

  float4 held[kHeld];
  const auto load = [&](int base) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int row = base + j * kGroups + group;
      if (row < a.DK && columns > 0) {
        held[j] = load4<kVector>(C + static_cast<int64_t>(row) * a.DV, columns);
      }
    }
  };
  load(0);
  float m = a.m[state];
  for (int x = threadIdx.x; x < a.DK; x += kThreads) n[x] = a.n[state * a.DK + x];

  for (int row = rows.first; row < rows.end; ++row) {
    const MlstmHead s = head_at(a, head, row);
    const StepGates g = step_gates(a, *s.i, *s.f, m);
    m = g.m;
    const float scale = 1.0f / sqrtf(static_cast<float>(a.DK));
    float qn = 0;
    for (int x = threadIdx.x; x < a.DK; x += kThreads) {
      qs[x] = s.q[x] * scale;
      Ik[x] = __fmul_rn(g.I, s.k[x]);
      n[x] = advance(g.F, n[x], Ik[x]);
      qn = fmaf(qs[x], n[x], qn);
    }
    qn = block_sum<kThreads>(qn);  // and all of qs and I k are there

    float v[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) v[c] = c < columns ? s.v[d + c] : 0;
    float4 h = make_float4(0, 0, 0, 0);
    for (int base = 0; base < a.DK; base += kSlab) {
      if (base > 0 || row > rows.first) load(base);
#pragma unroll
      for (int j = 0; j < kHeld; ++j) {
        const int x = base + j * kGroups + group;
        if (x >= a.DK || columns <= 0) break;
        float4& cell = held[j];
        cell.x = advance(g.F, cell.x, __fmul_rn(Ik[x], v[0]));
        cell.y = advance(g.F, cell.y, __fmul_rn(Ik[x], v[1]));
        cell.z = advance(g.F, cell.z, __fmul_rn(Ik[x], v[2]));
        cell.w = advance(g.F, cell.w, __fmul_rn(Ik[x], v[3]));
        h.x = fmaf(qs[x], cell.x, h.x);
        h.y = fmaf(qs[x], cell.y, h.y);
        h.z = fmaf(qs[x], cell.z, h.z);
        h.w = fmaf(qs[x], cell.w, h.w);
        store4<kVector>(C + static_cast<int64_t>(x) * a.DV, cell, columns);
      }
    }

    // The groups of a warp, then the warps.
#pragma unroll
    for (int offset = kColumns / 4; offset < kWarpSize; offset *= 2) {
      h.x += __shfl_xor_sync(0xffffffffu, h.x, offset);
      h.y += __shfl_xor_sync(0xffffffffu, h.y, offset);
      h.z += __shfl_xor_sync(0xffffffffu, h.z, offset);
      h.w += __shfl_xor_sync(0xffffffffu, h.w, offset);
    }
    const int lane = threadIdx.x % kWarpSize;
    if (lane < kColumns / 4) sums[threadIdx.x / kWarpSize][lane] = h;
    __syncthreads();
    const int column = threadIdx.x;
    if (column < kColumns && tile * kColumns + column < a.DV) {
      const float* parts = reinterpret_cast<const float*>(sums) + column;
      float sum = parts[0];
      for (int warp = 1; warp < kThreads / kWarpSize; ++warp) sum += parts[warp * kColumns];
      s.h[tile * kColumns + column] = sum / denominator(qn, m, a.eps);
    }
    __syncthreads();  // before the next row's
  }
}

// A block: one head of one sequence. What is left when h is there: n and m, and where `gates` h is
// normalised and gated.
__global__ void __launch_bounds__(kHeadNormThreads)
    step_end_kernel(MlstmArgs a, HeadNormGateArgs gate, bool gates) {
  let_next_start();
  wait_for_previous();
  const int head = blockIdx.x % a.H, sequence = blockIdx.x / a.H;
  const StepRows rows = step_rows(a.seqs, a.chunk, sequence);
  if (rows.first == rows.end) return;
  const int64_t state = static_cast<int64_t>(a.seqs.slot[sequence]) * a.H + head;
  float* n = a.n + state * a.DK;
  float m = a.m[state];
  for (int row = rows.first; row < rows.end; ++row) {
    const MlstmHead s = head_at(a, head, row);
    const StepGates g = step_gates(a, *s.i, *s.f, m);
    m = g.m;
    for (int x = threadIdx.x; x < a.DK; x += kHeadNormThreads) {
      n[x] = advance(g.F, n[x], __fmul_rn(g.I, s.k[x]));
    }
    if (gates) norm_and_gate(gate, row, head);
  }
  __syncthreads();  // all have read m
  if (threadIdx.x == 0) a.m[state] = m;
}

}  // namespace

void mlstm_steps(const MlstmArgs& args, Stream& stream) {
  const int tiles = (args.DV + kColumns - 1) / kColumns;
  const size_t shared = 3 * sizeof(float) * static_cast<size_t>(args.DK);
  const bool vector = args.DV % 4 == 0;
  const auto kernel = vector ? step_kernel<true> : step_kernel<false>;
  launch_early(stream, "mlstm, steps", kernel,
               {.grid = static_cast<unsigned>(args.seqs.num_seqs * args.H * tiles),
                .threads = kThreads,
                .shared = shared},
               args, tiles);
}

void mlstm_step_ends(const MlstmArgs& args, bool gates, Stream& stream) {
  launch_early(
      stream, "mlstm, ends of steps", step_end_kernel,
      {.grid = static_cast<unsigned>(args.seqs.num_seqs * args.H), .threads = kHeadNormThreads},
      args, head_norm_gate_of(args), gates);
}

}  // namespace recurve::cuda::sm80
