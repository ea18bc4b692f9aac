// The step form, row after row with the state in registers.

#include "kernels/check.h"
#include "kernels/cuda/sm80/capabilities.h"
#include "kernels/cuda/sm80/matrix/ssd_chunk.h"
#include "kernels/cuda/sm80/matrix/ssd_step.cuh"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

using namespace ssd;

// Time step and decay of a row.
struct Step {
  float dt, decay;
};

__device__ Step step_at(const SsdArgs& a, int64_t row, int head) {
  const SsdStep step = ssd_step_at(a, row, head);
  return {step.dt, expf(step.log_decay)};
}

__device__ void advance(float& h, float& y, float decay, float dtx, float B, float C) {
  h = __fmaf_rn(decay, h, __fmul_rn(dtx, B));
  y = __fmaf_rn(C, h, y);
}
__device__ void advance(float4& h, float& y, float decay, float dtx, const Row& in) {
  advance(h.x, y, decay, dtx, in.B.x, in.C.x);
  advance(h.y, y, decay, dtx, in.B.y, in.C.y);
  advance(h.z, y, decay, dtx, in.B.z, in.C.z);
  advance(h.w, y, decay, dtx, in.B.w, in.C.w);
}

// A warp: some channels of one head of one sequence. The state is on its way while the time
// step is computed, and is read and written once where N <= kSlab, else once a row.
// kVector: N is a multiple of 4. kOutgrown: of states that outgrow the cache, with kWhole. T: what
// the state is kept as.
template <typename T, bool kWhole, bool kVector, bool kOutgrown>
__global__ void __launch_bounds__(kThreads, kWhole ? Shape<T>::kBlocks : 0)
    ssd_kernel(SsdArgs a, int tiles) {
  constexpr int kChannels = Shape<T>::kChannels, kLanes = Shape<T>::kLanes;
  let_next_start();
  const int tile = blockIdx.x % tiles, head = blockIdx.x / tiles % a.H;
  const int sequence = blockIdx.x / tiles / a.H, lane = threadIdx.x % kWarpSize;
  const int p0 = (tile * kThreads + static_cast<int>(threadIdx.x)) / kWarpSize * kChannels;
  if (p0 >= a.P) return;
  const Lane<T, kWhole> s{a, head, p0, 4 * lane, min(kChannels, a.P - p0)};
  const StepRows rows = step_rows(a.seqs, a.chunk, sequence);
  const int64_t begin = rows.first, end = rows.end;
  T* state = values_of<T>(a.h) +
             ((static_cast<int64_t>(a.seqs.slot[sequence]) * a.H + head) * a.P + p0) * a.N + s.n;
  fetch_states(s, state);
  const Output output(s);
  wait_for_previous();
  if (begin == end) return;

  Four<T> held[kChannels];
  const auto load = [&](int base) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const T* from = state + static_cast<int64_t>(c) * a.N + base;
      if constexpr (kOutgrown) {
        load_outgrown(held[c], from);
      } else {
        held[c] = load_four<kVector>(from, s.states(c, base));
      }
    }
  };
  load(0);
  Row next = s.row_at(begin, 0);
  Step step;  // of one of the next kWarpSize rows
  for (int64_t row = begin; row < end; ++row) {
    Row in = next;
    if (row + 1 < end) next = s.row_at(row + 1, 0);
    const int t = static_cast<int>(row - begin) % kWarpSize;
    if (t == 0) step = step_at(a, min(row + lane, end - 1), head);
    const float decay = __shfl_sync(kAll, step.decay, t), x = in.x;
    const float dtx = __fmul_rn(__shfl_sync(kAll, step.dt, t), x);
    float y[kChannels] = {};
    for (int base = 0; base < a.N; base += kSlab) {
      if (base > 0) in = s.row_at(row, base);
      if (base > 0 || (row > begin && a.N > kSlab)) load(base);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        float4 h = widened(held[c]);
        advance(h, y[c], decay, __shfl_sync(kAll, dtx, c * kLanes), in);
        held[c] = four_of<T>(h);
        T* to = state + static_cast<int64_t>(c) * a.N + base;
        if constexpr (kOutgrown) {
          store_outgrown(to, held[c]);
        } else {
          store_four<kVector>(to, held[c], s.states(c, base));
        }
      }
    }
    output.put<kLanes>(a, row, sums_of_channels(y), x, in.z);
  }
}

template <typename T>
void launch_steps(const SsdArgs& args, Stream& stream) {
  const Launch launch = launch_of<T>(args);
  auto kernel =
      launch.vector ? ssd_kernel<T, false, true, false> : ssd_kernel<T, false, false, false>;
  if (launch.whole) {
    kernel = launch.outgrown ? ssd_kernel<T, true, true, true> : ssd_kernel<T, true, true, false>;
  }
  launch_early(stream, "ssd", kernel, launch.shape, args, launch.tiles);
}

}  // namespace

void ssd_steps(const SsdArgs& args, Stream& stream) {
  if (args.held.every > 1) return ssd_held_steps(args, stream);
  with_state_type(args.h.dtype,
                  [&](auto element) { launch_steps<decltype(element)>(args, stream); });
}

void run(const SsdArgs& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  CHECK(args.next.x == nullptr || ssd_defers_norm(args));
  const bool prompts = args.chunk > 1 && args.seqs.max_len > 1;
  if (prompts) ssd_take_in(args, stream);
  if (prompts && !ssd_tiles(args, stream)) ssd_chunks(args, stream);
  ssd_steps(args, stream);
}

}  // namespace recurve::cuda::sm80
