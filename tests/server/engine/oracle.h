#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "server/sampling/params.h"

namespace recurve::testing_support {

// Sampling as one would write it on paper: every step over the whole vocabulary, sorted, in double.
struct Outcome {
  int32_t id;
  double logit;
  double p;
};

struct Seen {
  std::map<int32_t, int> prompt, generated;
};

std::vector<double> oracle_logits(std::span<const float> row, const SamplingVocab& vocab,
                                  const SamplingParams& params, const Seen& seen, int64_t index);

// What may be drawn and how likely, likeliest first, ties by id. Temperature is not 0.
std::vector<Outcome> oracle(std::span<const float> row, const SamplingVocab& vocab,
                            const SamplingParams& params, const Seen& seen, int64_t index);

// The outcome at which the cumulative probability, in the order of ids, reaches u.
int32_t oracle_draw(std::vector<Outcome> outcomes, double u);

}  // namespace recurve::testing_support
