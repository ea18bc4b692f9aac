#include <vector>

#include "kernels/reference/math.h"
#include "kernels/reference/table.h"

namespace recurve::reference {
namespace {

// x: (K). y: (N of the part)
void add(const LoraPart& part, int64_t K, const float* x, float* y) {
  const Matrix A{.dtype = part.dtype, .N = part.r, .K = K, .data = part.A};
  const Matrix B{.dtype = part.dtype, .N = part.r, .K = part.N, .data = part.B};
  std::vector<float> inner(static_cast<size_t>(part.r));
  for (int64_t j = 0; j < part.r; ++j) {
    float& sum = inner[static_cast<size_t>(j)];
    for (int64_t k = 0; k < K; ++k) sum += weight_at(A, j * K + k) * x[k];
  }
  for (int64_t n = 0; n < part.N; ++n) {
    float sum = 0;
    for (int64_t j = 0; j < part.r; ++j) {
      sum += weight_at(B, part.at(j, n)) * inner[static_cast<size_t>(j)];
    }
    y[n] += part.scale * sum;
  }
}

}  // namespace

void run(const LoraArgs& args, Stream&) {
  for (const LoraRows& group : args.groups) {
    for (const int32_t row : group.rows) {
      for (const LoraPart& part : group.layers[static_cast<size_t>(args.layer)]) {
        add(part, args.K, args.x + row * args.K, args.y + row * args.N + part.first);
      }
    }
  }
}

}  // namespace recurve::reference
