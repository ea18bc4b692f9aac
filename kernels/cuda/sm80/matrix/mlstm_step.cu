#include "kernels/check.h"
#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/sm80/matrix/matrix_step.cuh"
#include "kernels/cuda/sm80/matrix/mlstm.cuh"
#include "kernels/cuda/sm80/matrix/mlstm.h"
#include "kernels/cuda/sm80/rows/head_norm_gate.cuh"

namespace recurve::cuda::sm80 {
namespace {

// The step's scalars: the new m, and the weights of the old state and of the new token.
struct StepGates {
  float m, F, I;
};
__device__ StepGates step_gates(const MlstmArgs& a, float i, float f, float m) {
  i = gate(i, a.gate_soft_cap);
  const float lf = log_sigmoid(gate(f, a.gate_soft_cap));
  const float next = max_of(lf + m, i);
  return {next, expf(lf + m - next), expf(i - next)};
}

struct StepCell {
  MlstmArgs a;
  HeadNormGateArgs gate;
  bool gates;
  unsigned* done;
  using Scalars = StepGates;
  template <typename T>
  using ShapeOfMany = StepShape<T, 4, 4>;  // a block begins slowly, so there are more of them
  static_assert(ShapeOfMany<float>::kThreads == kHeadNormThreads);

  __device__ __host__ const StateData& state() const { return a.C; }
  __device__ const float* z() const { return a.n; }
  __device__ const float* v(int64_t row, int head) const {
    return a.v + row * a.stride + static_cast<int64_t>(head) * a.DV;
  }
  __device__ float* o(int64_t row, int head) const { return a.h + (row * a.H + head) * a.DV; }
  __device__ Scalars start(int64_t state) const { return {a.m[state], 0, 0}; }
  __device__ Scalars next(const Scalars& before, int64_t row, int head) const {
    const int64_t at = row * a.stride + head;
    return step_gates(a, a.i[at], a.f[at], before.m);
  }
  __device__ KeyWeights weights(const Scalars& s, int64_t row, int head, int x) const {
    const int64_t at = row * a.stride + static_cast<int64_t>(head) * a.DK + x;
    return {s.F, __fmul_rn(s.I, a.k[at]), a.q[at] * (1.0f / sqrtf(static_cast<float>(a.DK))), 0};
  }
  __device__ float divisor(const Scalars& s, float qz) const {
    return max_of(fabsf(qz), expf(-s.m)) + a.eps;
  }
  // n and m, and where `gates` h is normalised and gated.
  __device__ void end(const StepRows& rows, int head, int64_t state, const Scalars& last,
                      const float* z) const {
    put_states(state, last, z);
    if (!gates) return;
    for (int64_t row = rows.first; row < rows.end; ++row) norm_and_gate(gate, row, head);
  }
  // A cluster makes them in the same way, each block its columns.
  static constexpr bool kClusters = true;
  bool clusters() const { return gates; }
  struct Ahead {
    float o, w;  // output gate and norm weight
  };
  __device__ Ahead ahead(int64_t row, int head, int d) const {
    return {gate.o[row * gate.o_stride + int64_t{head} * a.DV + d], gate.w[head * a.DV + d]};
  }
  __device__ void end_in_cluster(const ClusterCoord& place, const Scalars& last, const float* z,
                                 const float* own, const Ahead& ahead) const {
    const int thread = threadIdx.x, columns = place.columns;
    const auto for_each = [&](auto visit) {
#pragma unroll
      for (int j = 0; j < kMostColumns / kHeadNormThreads; ++j) {
        const int d = j * kHeadNormThreads + thread;
        if (d < a.DV) visit(j, d);
      }
    };
    float h[kMostColumns / kHeadNormThreads];
    for_each([&](int j, int d) { h[j] = load_shared(own + d % columns, d / columns); });
    const HeadNorm norm =
        head_norm(a.DV, gate.eps, [&](auto visit) { for_each([&](int j, int) { visit(h[j]); }); });
    if (thread < columns) {
      const int64_t at = (place.row * a.H + place.head) * a.DV + place.rank * columns + thread;
      put_gated(gate, at, norm, own[thread], ahead.o, ahead.w);
    }
    if (place.rank == 0) put_states(place.state, last, z);
  }

 private:
  static constexpr int kMostColumns = kMostInCluster * StepShape<float, 16, 2>::kColumns;
  // Which the blocks of the head have read.
  __device__ void put_states(int64_t state, const Scalars& last, const float* z) const {
    for (int x = threadIdx.x; x < a.DK; x += kHeadNormThreads) a.n[state * a.DK + x] = z[x];
    if (threadIdx.x == 0) a.m[state] = last.m;
  }
};

}  // namespace

void mlstm_steps(const MlstmArgs& args, bool gates, Stream& stream) {
  const std::span<unsigned> counters = static_cast<CudaStream&>(stream).counters();
  CHECK(static_cast<size_t>(args.seqs.num_seqs) * args.H <= counters.size());
  matrix_steps("mlstm, steps", StepCell{args, head_norm_gate_of(args), gates, counters.data()},
               stream);
}

}  // namespace recurve::cuda::sm80
