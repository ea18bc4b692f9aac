#include <cmath>
#include <vector>

#include "kernels/reference/math.h"
#include "kernels/reference/open_state.h"
#include "kernels/reference/table.h"

namespace recurve::reference {
namespace {

// v (count) to y: normed where there is an epsilon.
void norm(const float* v, int count, float eps, float* y) {
  float squares = 0;
  for (int i = 0; i < count; ++i) squares += v[i] * v[i];
  const float scale = eps > 0 ? 1.0f / std::sqrt(squares / static_cast<float>(count) + eps) : 1;
  for (int i = 0; i < count; ++i) y[i] = v[i] * scale;
}

// One row of one sequence. h: (D, N), its state. params: (R + 2 N), memory for them.
void scan_row(const SelectiveScanArgs& a, int64_t row, float* h, float* params) {
  const float* x = a.x + row * a.x_stride;
  const float* from = a.params + row * a.params_stride;
  const float *low = params, *B = params + a.R, *C = B + a.N;
  norm(from, a.R, a.norm_eps, params);
  norm(from + a.R, a.N, a.norm_eps, params + a.R);
  norm(from + a.R + a.N, a.N, a.norm_eps, params + a.R + a.N);
  for (int64_t d = 0; d < a.D; ++d) {
    float dt = 0;
    for (int64_t r = 0; r < a.R; ++r) dt += low[r] * weight_at(a.dt_proj, d * a.R + r);
    dt = softplus(dt + a.dt_bias[d]);
    const float* A = a.A + d * a.N;
    float y = 0;
    for (int64_t n = 0; n < a.N; ++n) {
      float& state = h[d * a.N + n];
      state = std::exp(dt * A[n]) * state + dt * B[n] * x[d];
      y += C[n] * state;
    }
    y += a.skip[d] * x[d];
    if (a.z != nullptr) y *= silu(a.z[row * a.z_stride + d]);
    a.y[row * a.D + d] = y;
  }
}

}  // namespace

void run(const SelectiveScanArgs& args, Stream&) {
  const int64_t values = int64_t{args.D} * args.N;
  std::vector<float> copy(OpenState::copy_floats(args.h, values));
  for (int seq = 0; seq < args.seqs.num_seqs; ++seq) {
    const int begin = args.seqs.begin[seq], end = args.seqs.begin[seq + 1];
    OpenState h(args.h, args.seqs.slot[seq] * values, values, copy.data());
    for (int row = begin; row < end; ++row) {
      scan_row(args, row, h.values(), args.scratch + int64_t{row} * args.num_params());
      if ((row - begin + 1) % args.chunk == 0 || row + 1 == end) h.end_chunk();
    }
  }
}

}  // namespace recurve::reference
