#include <vector>

#include "kernels/reference/math.h"
#include "kernels/reference/table.h"
#include "kernels/weight_format.h"

namespace recurve::reference {
namespace {

// x as the products take it.
const float* normed(const LinearArgs& args, const float* x, std::vector<float>& room,
                    Stream& stream) {
  if (args.norm == nullptr) return x;
  room.resize(static_cast<size_t>(args.W.K));
  run(RmsNormArgs{.rows = 1,
                  .D = static_cast<int>(args.W.K),
                  .eps = args.norm_eps,
                  .x = x,
                  .w = args.norm,
                  .y = room.data()},
      stream);
  return room.data();
}

}  // namespace

void run(const LinearArgs& args, Stream& stream) {
  const int64_t N = args.W.N, K = args.W.K, outputs = args.outputs();
  std::vector<float> room, z(static_cast<size_t>(N)), w(static_cast<size_t>(K));
  for (int r = 0; r < args.rows; ++r) {
    const float* x = normed(args, args.x + r * K, room, stream);
    for (int64_t n = 0; n < N; ++n) {
      unpack_row(args.W, n, w.data());
      float sum = 0;
      for (int64_t k = 0; k < K; ++k) sum += x[k] * w[static_cast<size_t>(k)];
      if (args.bias != nullptr) sum += args.bias[n];
      z[static_cast<size_t>(n)] = sum;
    }
    for (int64_t n = 0; n < outputs; ++n) {
      float y = z[static_cast<size_t>(n)];
      if (args.swiglu) y = silu(y) * z[static_cast<size_t>(outputs + n)];
      if (args.soft_cap > 0) y = soft_cap(y, args.soft_cap);
      if (args.residual != nullptr) y += args.residual[r * outputs + n];
      args.y[r * outputs + n] = y;
    }
  }
}

}  // namespace recurve::reference
