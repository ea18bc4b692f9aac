#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/table.h"

namespace recurve::reference {
namespace {

// x: (2 D), [x, -x] already doubled.
void softmax(std::vector<float>& x) {
  const float largest = *std::max_element(x.begin(), x.end());
  float sum = 0;
  for (float& value : x) sum += value = std::exp(value - largest);
  for (float& value : x) value /= sum;
}

// One head. x: (D) or (2 D)
std::vector<float> mapped(FeatureMap map, const std::vector<float>& x) {
  const size_t D = x.size();
  std::vector<float> y;
  switch (map) {
    case FeatureMap::kNone:
      return x;
    case FeatureMap::kSoftmax:
      for (const float sign : {2.0f, -2.0f}) {
        for (const float value : x) y.push_back(sign * value);
      }
      softmax(y);
      return y;
    case FeatureMap::kProduct:
      for (size_t d = 0; d < D / 2; ++d) y.push_back(x[d] * x[D / 2 + d]);
      return y;
    case FeatureMap::kDpfp: {
      std::vector<float> u;
      for (const float value : x) u.push_back(std::max(value, 0.0f));
      for (const float value : x) u.push_back(std::max(-value, 0.0f));
      for (size_t turn = 1; turn <= 4; ++turn) {
        for (size_t d = 0; d < 2 * D; ++d) y.push_back(u[d] * u[(d + 8 * D - turn) % (2 * D)]);
      }
      return y;
    }
  }
  return y;
}

}  // namespace

void run(const FeatureMapArgs& args, Stream&) {
  const int64_t D = args.map == FeatureMap::kProduct ? 2 * args.D : args.D;
  float* out = args.y;
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t head = 0; head < args.H; ++head) {
      const float* from = args.x + r * args.x_stride + head * D;
      const std::vector<float> y = mapped(args.map, {from, from + D});
      float sum = 1;
      if (args.sum_eps != 0) {
        sum = args.sum_eps;
        for (const float value : y) sum += value;
      }
      for (const float value : y) *out++ = value / sum;
    }
  }
}

}  // namespace recurve::reference
