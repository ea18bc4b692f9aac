// The chunk form: C, B and x in the places of queries, keys and values.
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/matrix/chunk_weights.cuh"
#include "kernels/cuda/sm80/matrix/ssd.cuh"
#include "kernels/cuda/sm80/matrix/ssd_chunk.h"

namespace recurve::cuda::sm80 {
namespace {

// A block: a head of a block of rows.
__global__ void __launch_bounds__(kWeightThreads)
    weights_kernel(SsdArgs a, int first_block, int blocks, BlockWeights* weights) {
  __shared__ float g[kBlockRows], dt[kBlockRows];
  let_next_start();
  wait_for_previous();
  const int head = static_cast<int>(blockIdx.x) % a.H;
  const int number = static_cast<int>(blockIdx.x) / a.H;
  const RowBlock rows = row_block(a.seqs, a.chunk, number / blocks, first_block + number % blocks);
  if (rows.L == 0) return;
  if (static_cast<int>(threadIdx.x) < rows.L) {
    const SsdStep step = ssd_step_at(a, rows.first + static_cast<int>(threadIdx.x), head);
    g[threadIdx.x] = step.log_decay;
    dt[threadIdx.x] = step.dt;
  }
  __syncthreads();
  const int64_t group = static_cast<int64_t>(rows.first) * a.xBC_stride + head / (a.H / a.G) * a.N;
  const auto at = [&](const float* from, int row, int x) {
    return from[group + static_cast<int64_t>(row) * a.xBC_stride + x];
  };
  weights_of_block(
      rows.L, a.N, 1, RowDecays{g, dt, rows.L}, [&](int t, int x) { return at(a.C, t, x); },
      [&](int j, int x) { return at(a.B, j, x); }, weights[blockIdx.x]);
}

}  // namespace

void ssd_chunks(const SsdArgs& args, Stream& stream) {
  const std::span<std::byte> scratch = static_cast<CudaStream&>(stream).scratch();
  auto* weights = reinterpret_cast<BlockWeights*>(scratch.data());
  const size_t block_bytes = sizeof(BlockWeights) * static_cast<size_t>(args.H);
  const auto launch = [&](const Ragged& seqs, int first_block, int blocks) {
    SsdArgs part = args;
    part.seqs = seqs;
    launch_early(
        stream, "ssd, weights of chunks", weights_kernel,
        {.grid = static_cast<unsigned>(seqs.num_seqs * blocks * args.H), .threads = kWeightThreads},
        part, first_block, blocks, weights);
    const int heads = args.H / args.G;
    matrix_chunks({.seqs = seqs,
                   .H = args.H,
                   .DK = args.N,
                   .DV = args.P,
                   .chunk = args.chunk,
                   .first_block = first_block,
                   .blocks = blocks,
                   .weights = weights,
                   .F = nullptr,
                   .q = {args.C, args.xBC_stride, heads, args.N},
                   .k = {args.B, args.xBC_stride, heads, args.N},
                   .by_block = false,
                   .v = {args.x, args.xBC_stride, 1, args.P},
                   .S = args.h,
                   .keys_inner = true,
                   .z = nullptr,
                   .eps = 0,
                   .bounded = false,
                   .skip = args.skip,
                   .gate = {args.z, args.z_stride, 1, args.P},
                   .o = args.y},
                  stream);
  };
  for_each_wave(args.seqs, args.chunk, block_bytes, scratch.size(), launch);
}

}  // namespace recurve::cuda::sm80
