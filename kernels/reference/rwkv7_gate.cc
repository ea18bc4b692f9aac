#include <cmath>

#include "kernels/reference/math.h"
#include "kernels/reference/table.h"

namespace recurve::reference {
namespace {

constexpr float kFastest = 0.60653066f;  // exp(-1/2)
constexpr float kShortest = 1e-12f;      // of a key that is normalised

// NaN stays, unlike with std::max.
float at_least(float low, float x) { return x < low ? low : x; }

}  // namespace

void run(const Rwkv7GateArgs& args, Stream&) {
  const int64_t D = int64_t{args.H} * args.N;
  for (int64_t head = 0; head < int64_t{args.rows} * args.H; ++head) {
    const int64_t first = head * args.N, channel = first % D;
    float squares = 0;
    for (int64_t c = 0; c < args.N; ++c) {
      const float key = args.k[first + c] * args.k_k[channel + c];
      args.kk[first + c] = key;
      squares += key * key;
    }
    const float length = at_least(kShortest, std::sqrt(squares));
    for (int64_t at = first, d = channel; at < first + args.N; ++at, ++d) {
      args.kk[at] /= length;
      args.w[at] = -kFastest * sigmoid(args.w[at]);
      const float alpha = sigmoid(args.a[at]);
      args.a[at] = alpha;
      args.k[at] *= 1 + (alpha - 1) * args.k_a[d];
      if (args.m != nullptr) args.v[at] += (args.v_first[at] - args.v[at]) * sigmoid(args.m[at]);
    }
  }
}

}  // namespace recurve::reference
