#include <algorithm>
#include <vector>

#include "kernels/reference/math.h"
#include "kernels/reference/table.h"
#include "kernels/weight_format.h"

namespace recurve::reference {
namespace {

// x as the products take it: (rows, K).
const float* normed(const LinearArgs& args, std::vector<float>& normed_rows, Stream& stream) {
  if (args.norm == nullptr) return args.x;
  normed_rows.resize(static_cast<size_t>(args.rows * args.W.K));
  run(RmsNormArgs{.rows = args.rows,
                  .D = static_cast<int>(args.W.K),
                  .eps = args.norm_eps,
                  .x = args.x,
                  .w = args.norm,
                  .y = normed_rows.data()},
      stream);
  return normed_rows.data();
}

// z = x W^T, (rows, N). Every sum is taken from the first k to the last; those of some outputs grow
// side by side, as none waits for another then, and rows of W are unpacked once.
void multiply(const Matrix& W, int rows, const float* x, float* z) {
  const int64_t N = W.N, K = W.K, most = std::min<int64_t>(N, 32);
  std::vector<float> row(static_cast<size_t>(K)), columns(static_cast<size_t>(K * most));
  for (int64_t first = 0; first < N; first += most) {
    const int64_t outputs = std::min(most, N - first);
    for (int64_t n = 0; n < outputs; ++n) {
      unpack_row(W, first + n, row.data());
      for (int64_t k = 0; k < K; ++k) columns[static_cast<size_t>(k * outputs + n)] = row[k];
    }
    for (int64_t r = 0; r < rows; ++r) {
      float* sums = z + r * N + first;
      std::fill_n(sums, outputs, 0.0f);
      for (int64_t k = 0; k < K; ++k) {
        const float value = x[r * K + k], *column = &columns[static_cast<size_t>(k * outputs)];
        for (int64_t n = 0; n < outputs; ++n) sums[n] += value * column[n];
      }
    }
  }
}

}  // namespace

void run(const LinearArgs& args, Stream& stream) {
  const int64_t N = args.W.N, outputs = args.outputs();
  std::vector<float> normed_rows, products(static_cast<size_t>(args.rows * N));
  multiply(args.W, args.rows, normed(args, normed_rows, stream), products.data());
  for (int64_t r = 0; r < args.rows; ++r) {
    float* z = &products[static_cast<size_t>(r * N)];
    for (int64_t n = 0; args.bias != nullptr && n < N; ++n) z[n] += args.bias[n];
    for (int64_t n = 0; n < outputs; ++n) {
      float y = z[n];
      if (args.swiglu) y = silu(y) * z[outputs + n];
      if (args.soft_cap > 0) y = soft_cap(y, args.soft_cap);
      if (args.residual != nullptr) y += args.residual[r * outputs + n];
      args.y[r * outputs + n] = y;
    }
  }
}

}  // namespace recurve::reference
