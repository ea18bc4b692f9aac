#pragma once
#include <cstdint>
#include <vector>

#include "server/sampling/params.h"

namespace recurve {

struct TokenLogprob {
  int32_t id = -1;
  float logprob = 0;
};

// The result of sampling one row of logits.
//
// Log-probabilities are always those of the model's own distribution: log_softmax of the row over
// the usable ids, before any bias, penalty, temperature or filter.
//
// A row with a NaN or +infinity among the usable ids, or whose ids are all masked or -infinity,
// gives an error: the engine ends that one request with INTERNAL. Values of ids that are not usable
// are never read.
struct SampledToken {
  int32_t id = -1;    // -1: no token can be sampled from this row, see error
  float logprob = 0;  // natural log; set if params.logprobs >= 0
  std::vector<TokenLogprob>
      top;                      // params.logprobs most likely ids, likeliest first, ties: lower id
  const char* error = nullptr;  // static sentence, set if and only if id is -1
};

enum class StopKind { kNone, kEos, kStopId };

// Whether and how `id`, sampled as token number `index` of the answer, ends the answer. An id that
// is both kinds counts as end-of-sequence, unless that is ignored. Before min_tokens only an answer
// whose constraint allows nothing else can end.
StopKind stop_kind(int32_t id, const SamplingParams& params, const SamplingVocab& vocab,
                   int64_t index);

}  // namespace recurve
