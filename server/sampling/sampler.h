#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "server/sampling/candidates.h"
#include "server/sampling/params.h"
#include "server/sampling/token_history.h"

namespace recurve {

// Logits to token ids, on the engine's thread. A row passes through, in this order,
//
//   mask (ids without a token; ids not allowed; before min_tokens: end-of-sequence and stop ids)
//   -> logit_bias -> repetition, presence, frequency penalty -> temperature
//   -> top_k -> typical_p -> top_p -> min_p -> draw
//
// the order of vLLM and of Hugging Face's generate() where those two agree; each filter works on
// what the one before it left, renormalised. Sources: top_p Holtzman et al. 2020 (arXiv
// 1904.09751); typical_p Meister et al. 2023 (arXiv 2202.00666); min_p Nguyen et al. 2024 (arXiv
// 2407.01082); repetition penalty Keskar et al. 2019 (arXiv 1909.05858), as in Hugging Face: once
// for an id, however often it occurred; presence and frequency as in the OpenAI API: answer only.
//
// The draw inverts the cumulative distribution, in double, over the ids that are left in the order
// logit descending, id ascending. Its uniform number is Philox 4x32-10 keyed by the seed and
// counted by the token's index, so there is no generator state to save or to fork, and a row's
// result depends on nothing but the row and its request.

struct TokenLogprob {
  int32_t id = -1;
  float logprob = 0;
};

struct SampledToken {
  int32_t id = -1;    // -1: no token can be sampled from this row, see error
  float logprob = 0;  // natural log; set if params.logprobs >= 0
  std::vector<TokenLogprob>
      top;                      // params.logprobs most likely ids, likeliest first, ties: lower id
  const char* error = nullptr;  // static sentence, set if and only if id is -1
};

enum class StopKind { kNone, kEos, kStopId };

// One per engine: its scratch memory is reused from call to call. Not thread-safe.
//
// Log-probabilities are always those of the model's own distribution: log_softmax of the row over
// the usable ids, before any bias, penalty, temperature or filter.
//
// A row with a NaN or +infinity among the usable ids, or whose ids are all masked or -infinity,
// gives an error result: the engine ends that one request with INTERNAL. Values of ids that are not
// usable are never read.
class Sampler {
 public:
  explicit Sampler(SamplingVocab vocab);

  // logits: (vocab.rows). index: how many tokens this request generated before this one.
  // params must have passed check().
  SampledToken sample(std::span<const float> logits, const SamplingParams& params,
                      const TokenHistory& history, int64_t index);

  // What a row says about a token that is given: `id` with its log-probability and the `top` most
  // likely ids; for prompts and for Score.
  // logits: (vocab.rows); id in [0, rows), -infinity if not usable; top in [0, kMaxLogprobs].
  SampledToken score(std::span<const float> logits, int32_t id, int top);

  // Whether `id`, sampled as token number `index`, ends the answer, and as what. An id that is both
  // counts as end-of-sequence, unless that is ignored. Before min_tokens nothing ends it.
  StopKind stop_kind(int32_t id, const SamplingParams& params, int64_t index) const;
  bool is_stop(int32_t id, const SamplingParams& params, int64_t index) const {
    return stop_kind(id, params, index) != StopKind::kNone;
  }

  const SamplingVocab& vocab() const { return vocab_; }

 private:
  // The row after masks, bias and penalties: (usable). The row itself where none applies.
  std::span<const float> processed(std::span<const float> row, const SamplingParams& params,
                                   const TokenHistory& history, int64_t index);
  void apply_masks(std::span<const float> row, const SamplingParams& params, int64_t index);
  void apply_penalties(const SamplingParams& params, const TokenHistory& history);
  // The filters and the draw; `max` is the row's greatest value, which is finite.
  int32_t draw(std::span<const float> row, float max, const SamplingParams& params, int64_t index);
  void add_logprobs(std::span<const float> row, float max, int top, SampledToken* token);

  const SamplingVocab vocab_;
  std::vector<float> scratch_;   // (usable)
  std::vector<double> weights_;  // (usable)
  Candidates candidates_;
};

}  // namespace recurve
