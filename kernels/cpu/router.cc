#include <algorithm>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/router.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// s: (E)
void router_scores(const RouterArgs& a, const float* logits, float* s) {
  if (a.scores == RouterScores::kSigmoid) {
    return for_lanes(a.E, [&](auto d, int64_t e) HWY_ATTR {
      hn::StoreU(sigmoid(d, hn::LoadU(d, logits + e)), d, s + e);
    });
  }
  const float most = *std::max_element(logits, logits + a.E);
  for_lanes(a.E, [&](auto d, int64_t e) HWY_ATTR {
    hn::StoreU(exp(d, hn::Sub(hn::LoadU(d, logits + e), hn::Set(d, most))), d, s + e);
  });
  // Where the chosen ones are divided by their sum, nothing else is left of that of all.
  if (a.renormalised && a.correction == nullptr) return;
  const float sum = sum_over(a.E, [&](auto d, int64_t e) HWY_ATTR { return hn::LoadU(d, s + e); });
  for_lanes(a.E, [&](auto d, int64_t e) HWY_ATTR {
    hn::StoreU(hn::Div(hn::LoadU(d, s + e), hn::Set(d, sum)), d, s + e);
  });
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {
namespace {

HWY_EXPORT(router_scores);

// Adds value number e to the `count` largest of those before it, of which there are `chosen` now,
// the largest first: equal ones stay in the order of their numbers.
void insert(const float* values, int32_t e, int count, int& chosen, int32_t* best) {
  if (chosen == count && !(values[e] > values[best[count - 1]])) return;
  int at = chosen < count ? chosen++ : count - 1;
  for (; at > 0 && values[e] > values[best[at - 1]]; --at) best[at] = best[at - 1];
  best[at] = e;
}

// sum: (groups). best: (top_groups), those that may be chosen from.
void choose_groups(const RouterArgs& a, const float* c, float* sum, int32_t* best) {
  const int size = a.E / a.groups;
  int chosen = 0;
  for (int32_t g = 0; g < a.groups; ++g) {
    const float* values = c + g * size;
    int32_t two[2];
    int count = 0;
    for (int32_t e = 0; e < size; ++e) insert(values, e, std::min(size, 2), count, two);
    sum[g] = values[two[0]] + (count > 1 ? values[two[1]] : 0);
    insert(sum, g, a.top_groups, chosen, best);
  }
  std::sort(best, best + chosen);
}

// s: (2 E) floats of scratch. groups: (top_groups)
void route_row(const RouterArgs& a, int64_t row, float* s, int32_t* groups) {
  float* const c = a.correction == nullptr ? s : s + a.E;
  HWY_DYNAMIC_DISPATCH(router_scores)(a, a.logits + row * a.stride, s);
  for (int e = 0; c != s && e < a.E; ++e) c[e] = s[e] + a.correction[e];
  int32_t* const expert = a.expert + row * a.top;
  float* const weight = a.weight + row * a.top;
  if (a.groups == 1) {
    groups[0] = 0;
  } else {
    choose_groups(a, c, s + 2 * a.E, groups);
  }
  const int size = a.E / a.groups, open = a.groups == 1 ? 1 : a.top_groups;
  int chosen = 0;
  for (int g = 0; g < open; ++g) {
    for (int32_t e = groups[g] * size; e < (groups[g] + 1) * size; ++e) {
      insert(c, e, a.top, chosen, expert);
    }
  }
  std::sort(expert, expert + a.top);
  float sum = 0;
  for (int j = 0; j < a.top; ++j) sum += s[expert[j]];
  for (int j = 0; j < a.top; ++j) {
    weight[j] = a.scale * (a.renormalised ? s[expert[j]] / sum : s[expert[j]]);
  }
}

// The pairs by expert, by counting.
void sort_pairs(const RouterArgs& a) {
  const int64_t pairs = int64_t{a.rows} * a.top;
  std::fill_n(a.begin, a.E + 1, 0);
  for (int64_t p = 0; p < pairs; ++p) ++a.begin[a.expert[p] + 1];
  for (int e = 0; e < a.E; ++e) a.begin[e + 1] += a.begin[e];
  for (int64_t p = 0; p < pairs; ++p) {
    a.pair[a.begin[a.expert[p]]++] = static_cast<int32_t>(p);
  }
  // Each begins where the one before it ends, which is where that one's count has come to.
  for (int e = a.E; e > 0; --e) a.begin[e] = a.begin[e - 1];
  a.begin[0] = 0;
}

size_t scratch_values(const RouterArgs& a) {
  return static_cast<size_t>(2 * a.E + a.groups + a.top_groups);
}

}  // namespace

ScratchBytes scratch_of(const RouterArgs& args) {
  return {.thread = scratch_values(args) * sizeof(float)};
}

void run(const RouterArgs& args, Stream& stream) {
  for_blocks(pool_of(stream), args.rows, 8 * int64_t{args.E}, [&](int64_t begin, int64_t end) {
    float* const s = scratch(scratch_values(args));
    auto* const groups = reinterpret_cast<int32_t*>(s + 2 * args.E + args.groups);
    for (int64_t row = begin; row < end; ++row) route_row(args, row, s, groups);
  });
  sort_pairs(args);
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
