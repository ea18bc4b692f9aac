#pragma once
#include <cstdint>

#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/channels/channel_scan_rows.cuh"

// Kernels of an op: see channel_scan_rows.cuh.
namespace recurve::cuda::sm80 {

// A channel of a sequence of one row.
template <typename Op>
__device__ void take_row(const Op& op, int sequence, int channel,
                         const typename Op::Weights& weights) {
  const int64_t row = op.seqs.begin[sequence];
  float inputs[Op::kInputs];
#pragma unroll
  for (int k = 0; k < Op::kInputs; ++k) inputs[k] = op.input[k][row * op.stride[k] + channel];
  float& state = op.state[int64_t{op.seqs.slot[sequence]} * op.D + channel];
  const bool first = op.fresh(row);
  const Coefficients c = Op::of(inputs, weights, first);
  const float h = advance(c.a, first ? 0 : state, c.x);
  state = h;
  op.y[row * op.D + channel] = output_of<Op::kGated>(c.gate, h);
}

constexpr int kScanStepThreads = 256;

// Sequences of one row each, a thread a channel. Blocks: sequences x pieces of the threads.
template <typename Op>
__global__ void __launch_bounds__(kScanStepThreads) channel_step_kernel(Op op, int pieces) {
  const int sequence = static_cast<int>(blockIdx.x) / pieces;
  const int piece = static_cast<int>(blockIdx.x) - sequence * pieces;
  const int channel = piece * kScanStepThreads + static_cast<int>(threadIdx.x);
  if (channel >= op.D) return;
  const auto weights = op.weights(channel);
  wait_for_previous();
  let_next_start();
  take_row(op, sequence, channel, weights);
}

// Blocks: sequences x pieces of kChannels. Threads: kWarps that compute coefficients, and one warp
// that computes states. fours: as in InputCopier.
template <typename Op, int kWarps, int kChannels>
__global__ void __launch_bounds__((kWarps + 1) * kWarpSize, kWarps == kWideScanWarps ? 1 : 2)
    channel_scan_kernel(Op op, int pieces, bool fours) {
  extern __shared__ __align__(16) float shared[];
  auto& memory = *reinterpret_cast<ScanMemory<Op, kWarps>*>(shared);
  const int sequence = static_cast<int>(blockIdx.x) / pieces;
  const int piece = static_cast<int>(blockIdx.x) - sequence * pieces;
  const int first_channel = piece * kChannels;
  wait_for_previous();
  let_next_start();
  const int64_t begin = op.seqs.begin[sequence];
  const int rows = static_cast<int>(op.seqs.begin[sequence + 1] - begin);
  if (rows == 1) {  // a decode in a batch with prompts: one block has the channels of several
    constexpr int kAtOnce = kWarps * kWarpSize / kChannels;
    const int channel = first_channel + static_cast<int>(threadIdx.x);
    const int end = min(first_channel + kAtOnce * kChannels, op.D);
    if (piece % kAtOnce == 0 && channel < end) take_row(op, sequence, channel, op.weights(channel));
    return;
  }
  constexpr int kRows = kScanRows<kWarps, kChannels>;
  const ScanBlock block{begin, rows, (rows + kRows - 1) / kRows, first_channel};
  const bool fresh = op.fresh(begin);
  const int lane = static_cast<int>(threadIdx.x) - kWarps * kWarpSize;
  if (lane < 0) {
    return compute_coefficients<Op, kWarps, kChannels>(op, block, memory, fours, fresh);
  }
  const int own = min(lane, min(kChannels, op.D - first_channel) - 1);
  float& state = op.state[int64_t{op.seqs.slot[sequence]} * op.D + first_channel + own];
  StateScan<Op, kWarps, kChannels> states(op, block, memory, own, lane == own);
  const float h = states.scan(fresh ? 0 : state);
  if (lane == own) state = h;
}

template <typename Op>
bool in_fours(const Op& op) {
  bool all = op.D % kScanFour == 0;
  for (int k = 0; k < Op::kInputs; ++k) {
    all = all && op.stride[k] % kScanFour == 0 &&
          reinterpret_cast<uintptr_t>(op.input[k]) % sizeof(float4) == 0;
  }
  return all;
}

template <typename Op, int kWarps, int kChannels>
void launch_channel_scan(const Op& op, int pieces, const char* name, Stream& stream) {
  const auto kernel = channel_scan_kernel<Op, kWarps, kChannels>;
  constexpr int kBytes = channel_scan_bytes(Op::kInputs, kScanCoefficients<Op::kGated>, kWarps);
  static_assert(kBytes == sizeof(ScanMemory<Op, kWarps>));
  abort_if_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
                  name);
  launch_early(stream, name, kernel,
               {.grid = static_cast<unsigned>(op.seqs.num_seqs * pieces),
                .threads = (kWarps + 1) * kWarpSize,
                .shared = kBytes},
               op, pieces, in_fours(op));
}

template <typename Op>
void run_channel_scan(const Op& op, const char* name, Stream& stream) {
  if (op.seqs.num_seqs == 0) return;
  if (op.seqs.max_len == 1) {
    const int pieces = ceil_div(op.D, kScanStepThreads);
    return launch_early(
        stream, name, channel_step_kernel<Op>,
        {.grid = static_cast<unsigned>(op.seqs.num_seqs * pieces), .threads = kScanStepThreads}, op,
        pieces);
  }
  const auto& device = static_cast<CudaStream&>(stream);
  const ChannelScanPlan plan =
      plan_channel_scan({.inputs = Op::kInputs,
                         .coefficients = kScanCoefficients<Op::kGated>,
                         .sequences = op.seqs.num_seqs,
                         .D = op.D,
                         .multiprocessors = device.multiprocessors(),
                         .most_bytes = static_cast<int>(most_shared_memory(name))});
  const auto launch = !plan.wide            ? launch_channel_scan<Op, kNarrowScanWarps, 32>
                      : plan.channels == 8  ? launch_channel_scan<Op, kWideScanWarps, 8>
                      : plan.channels == 16 ? launch_channel_scan<Op, kWideScanWarps, 16>
                                            : launch_channel_scan<Op, kWideScanWarps, 32>;
  launch(op, plan.pieces, name, stream);
}

}  // namespace recurve::cuda::sm80
