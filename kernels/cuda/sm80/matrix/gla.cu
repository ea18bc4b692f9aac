#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/matrix/gla_chunk.h"
#include "kernels/cuda/sm80/matrix/matrix_step.cuh"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kNormaliserThreads = 64;

// What a key channel brings to a row.
__device__ KeyWeights weights_at(const GlaArgs& a, int64_t row, int head, int x) {
  const int64_t channel = static_cast<int64_t>(head) * a.DK + x;
  float g = 0;
  if (a.decay == GlaDecay::kHead) g = a.g[head];
  if (a.decay == GlaDecay::kToken) g = a.g[row * a.g_stride + head];
  if (a.decay == GlaDecay::kChannel) g = a.g[row * a.g_stride + channel];
  const float k = a.k[row * a.k_stride + channel];
  const float weight = a.i == nullptr ? 1 : expf(a.i[row * a.g_stride + head]);
  return {expf(g), __fmul_rn(weight, k), __fmul_rn(a.scale, a.q[row * a.q_stride + channel]), 0};
}

struct StepCell {
  GlaArgs a;
  static constexpr unsigned* done = nullptr;
  static constexpr bool kClusters = false;
  struct Ahead {};
  struct Scalars {};
  template <typename T>
  using ShapeOfMany = StepShape<T, 8, 2>;

  __device__ __host__ const StateData& state() const { return a.S; }
  __device__ const float* z() const { return a.z; }
  __device__ const float* v(int64_t row, int head) const {
    return a.v + row * a.v_stride + static_cast<int64_t>(head) * a.DV;
  }
  __device__ float* o(int64_t row, int head) const { return a.o + (row * a.H + head) * a.DV; }
  __device__ Scalars start(int64_t) const { return {}; }
  __device__ Scalars next(Scalars, int64_t, int) const { return {}; }
  __device__ KeyWeights weights(Scalars, int64_t row, int head, int x) const {
    return weights_at(a, row, head, x);
  }
  __device__ float divisor(Scalars, float qz) const {
    return (a.bounded ? max_of(fabsf(qz), 1.0f) : qz) + a.eps;
  }
  __device__ void end(const StepRows&, int, int64_t, Scalars, const float*) const {}
};

// A block: z of one head of one sequence, when all have read it.
__global__ void __launch_bounds__(kNormaliserThreads) normaliser_kernel(GlaArgs a) {
  let_next_start();
  wait_for_previous();
  const int head = blockIdx.x % a.H, sequence = blockIdx.x / a.H;
  const StepRows mine = step_rows(a.seqs, a.chunk, sequence);
  const int64_t begin = mine.first, end = mine.end;
  float* z = a.z + (static_cast<int64_t>(a.seqs.slot[sequence]) * a.H + head) * a.DK;
  for (int x = threadIdx.x; x < a.DK; x += kNormaliserThreads) {
    float sum = z[x];
    for (int64_t row = begin; row < end; ++row) sum = advance(weights_at(a, row, head, x), sum);
    z[x] = sum;
  }
}

}  // namespace

void run(const GlaArgs& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  if (args.chunk > 1 && args.seqs.max_len > 1 && !gla_tiles(args, stream)) {
    gla_chunks(args, stream);
  }
  gla_steps(args, stream);
}

void gla_steps(const GlaArgs& args, Stream& stream) {
  matrix_steps("gla", StepCell{args}, stream);
  if (args.z == nullptr) return;
  launch_early(
      stream, "gla, normaliser", normaliser_kernel,
      {.grid = static_cast<unsigned>(args.seqs.num_seqs * args.H), .threads = kNormaliserThreads},
      args);
}

}  // namespace recurve::cuda::sm80
