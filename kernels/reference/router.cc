#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/reference/math.h"
#include "kernels/reference/table.h"

namespace recurve::reference {
namespace {

// The `count` largest of the values that are `open`, in the order of their numbers.
std::vector<int> largest(const std::vector<float>& values, std::vector<char> open, int count) {
  std::vector<int> chosen;
  for (int i = 0; i < count; ++i) {
    int best = -1;
    for (int e = 0; e < static_cast<int>(values.size()); ++e) {
      if (open[e] && (best < 0 || values[e] > values[best])) best = e;
    }
    open[best] = false;
    chosen.push_back(best);
  }
  std::ranges::sort(chosen);
  return chosen;
}

std::vector<float> scores(const RouterArgs& a, const float* logits) {
  std::vector<float> s(logits, logits + a.E);
  if (a.scores == RouterScores::kSigmoid) {
    for (float& score : s) score = sigmoid(score);
    return s;
  }
  const float most = *std::ranges::max_element(s);
  for (float& score : s) score = std::exp(score - most);
  const float sum = std::accumulate(s.begin(), s.end(), 0.0f);
  for (float& score : s) score /= sum;
  return s;
}

// Which experts are in groups that may be chosen from.
std::vector<char> open_experts(const RouterArgs& a, const std::vector<float>& c) {
  std::vector<char> open(static_cast<size_t>(a.E), a.groups == 1);
  if (a.groups == 1) return open;
  const int size = a.E / a.groups;
  std::vector<float> sums;
  for (int g = 0; g < a.groups; ++g) {
    const std::vector<float> values(c.begin() + g * size, c.begin() + (g + 1) * size);
    float sum = 0;
    for (const int e : largest(values, std::vector<char>(values.size(), 1), std::min(size, 2))) {
      sum += values[e];
    }
    sums.push_back(sum);
  }
  for (const int g : largest(sums, std::vector<char>(sums.size(), 1), a.top_groups)) {
    std::fill_n(open.begin() + g * size, size, 1);
  }
  return open;
}

}  // namespace

void run(const RouterArgs& args, Stream&) {
  for (int64_t r = 0; r < args.rows; ++r) {
    const std::vector<float> s = scores(args, args.logits + r * args.stride);
    std::vector<float> c = s;
    for (int e = 0; args.correction != nullptr && e < args.E; ++e) c[e] += args.correction[e];
    const std::vector<int> chosen = largest(c, open_experts(args, c), args.top);
    float sum = 0;
    for (const int e : chosen) sum += s[e];
    for (int j = 0; j < args.top; ++j) {
      const float score = s[chosen[j]];
      args.expert[r * args.top + j] = chosen[j];
      args.weight[r * args.top + j] = args.scale * (args.renormalised ? score / sum : score);
    }
  }
  int32_t position = 0;
  for (int e = 0; e < args.E; ++e) {
    args.begin[e] = position;
    for (int32_t p = 0; p < args.rows * args.top; ++p) {
      if (args.expert[p] == e) args.pair[position++] = p;
    }
  }
  args.begin[args.E] = position;
}

}  // namespace recurve::reference
