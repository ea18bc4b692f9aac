#include <cmath>
#include <vector>

#include "kernels/open_state.h"
#include "kernels/reference/math.h"
#include "kernels/reference/table.h"

namespace recurve::reference {
namespace {

// One row of one sequence. h: (D, N), its state.
void scan_row(const SelectiveScanArgs& a, int64_t row, float* h) {
  const float* x = a.x + row * a.x_stride;
  const float* dts = a.dt + row * a.dt_stride;
  const float* B = a.B + row * a.BC_stride;
  const float* C = a.C + row * a.BC_stride;
  for (int64_t d = 0; d < a.D; ++d) {
    const float dt = softplus(dts[d] + a.dt_bias[d]);
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

void selective_scan(const SelectiveScanArgs& args, Stream&) {
  const int64_t values = int64_t{args.D} * args.N;
  std::vector<float> copy(OpenState::room(args.h, values));
  for (int seq = 0; seq < args.seqs.num_seqs; ++seq) {
    const int begin = args.seqs.begin[seq], end = args.seqs.begin[seq + 1];
    OpenState h(args.h, args.seqs.slot[seq] * values, values, copy.data());
    for (int row = begin; row < end; ++row) {
      scan_row(args, row, h.values());
      if ((row - begin + 1) % args.chunk == 0 || row + 1 == end) h.end_chunk();
    }
  }
}

}  // namespace recurve::reference
