#pragma once
#include <cstdint>

#include "kernels/ops/op.h"

namespace recurve {

enum class RouterScores { kSoftmax, kSigmoid };

// Which `top` of E experts each row goes to, and with which weights:
//   s = softmax(logits) or sigmoid(logits);  c = s + correction
//   where there are groups, each of E / groups experts in order: only those of the top_groups
//   groups whose two largest c (one, of groups of one) have the largest sums
//   the `top` experts of the largest c;  weight = scale s, or scale s / (sum of the chosen s)
// Of equal values the expert or group of the lower number is chosen. Any logits give distinct
// experts in range, even if some are not numbers.
// Sources: Shazeer et al. 2017; DeepSeek-V3 (arXiv:2412.19437), 2.1.2, for correction and groups.
struct RouterArgs {
  int rows;
  int E;
  int top;
  RouterScores scores;
  bool renormalised;                  // by the sum of the chosen s
  float scale = 1;                    // of weights
  int groups = 1, top_groups = 1;     // divides E; top_groups have `top` experts at least
  int stride;                         // floats from a row of logits to the next, at least E
  const float* logits;                // (rows, E)
  const float* correction = nullptr;  // (E) or null: 0
  // A pair is a row and one of its experts. Those of row r are r * top, ..., in the order of the
  // experts' numbers.
  int32_t* expert;  // (rows, top)
  float* weight;    // (rows, top)
  // The pairs by expert, and those of one expert by row: begin[e], ..., begin[e + 1] - 1 of `pair`.
  int32_t* begin;  // (E + 1)
  int32_t* pair;   // (rows top)
};

struct RouterKernel {
  static constexpr const char* kName = "router";
  Op<RouterArgs> router;
  static constexpr auto kOp = &RouterKernel::router;
};

}  // namespace recurve
