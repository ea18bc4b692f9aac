#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/constraint/constraint.h"

namespace recurve {

// The ids that sampling may choose from, fixed when the model is loaded.
struct SamplingVocab {
  int32_t rows = 0;              // length of a logits row, padding ids included
  int32_t usable = 0;            // ids [0, usable) have a token; the rest is never sampled
  std::vector<int32_t> eos_ids;  // the checkpoint's true end-of-sequence ids, each in [0, usable)
};

// Bounds of a request's memory and time per token.
inline constexpr int kMaxLogprobs = 100;
inline constexpr int kMaxLogitBiasEntries = 1024;
inline constexpr float kMaxLogitBias = 1000.0f;
inline constexpr int kMaxStopIds = 64;
inline constexpr float kMaxTemperature = 1000.0f;
inline constexpr float kMinRepetitionPenalty = 0.01f;
inline constexpr float kMaxRepetitionPenalty = 100.0f;
inline constexpr float kMaxOpenAiPenalty = 2.0f;  // presence and frequency, either sign

inline constexpr int32_t kDefaultMaxTokens = 256;

// Sampling parameters of a request. kernels/ops/sample.h has the order in which they are applied.
struct SamplingParams {
  // Divisor of the logits, [0, kMaxTemperature]. 0: greedy, and top_k ... min_p do not matter.
  float temperature = 1.0f;
  // Keep the top_k most likely ids, >= 0. 0, or the vocabulary and more: all.
  int32_t top_k = 0;
  // Keep the fewest most likely ids whose probabilities reach top_p, (0, 1]. 1: all.
  float top_p = 1.0f;
  // Keep ids at least min_p times as likely as the most likely one, [0, 1]. 0: all.
  float min_p = 0.0f;
  // Keep the fewest ids, closest to the entropy first, that reach typical_p, (0, 1]. 1: all.
  float typical_p = 1.0f;

  // Ids of the prompt and of the answer so far: positive logits are divided by it, negative
  // multiplied, [kMinRepetitionPenalty, kMaxRepetitionPenalty]. 1: off.
  float repetition_penalty = 1.0f;
  // Subtracted once from the logit of every id generated so far, [-2, 2]. 0: off.
  float presence_penalty = 0.0f;
  // Subtracted from an id's logit for every time it was generated, [-2, 2]. 0: off.
  float frequency_penalty = 0.0f;

  // (id, added to its logit), bias in [-kMaxLogitBias, kMaxLogitBias]; ids usable, each once.
  std::vector<std::pair<int32_t, float>> logit_bias;
  // Compiled constraint of the answer's text; null: none.
  std::shared_ptr<const Constraint> constraint = nullptr;
  // Only these ids may be sampled. Empty: all usable ids. Order and repeats do not matter.
  std::vector<int32_t> allowed_ids;

  // Same seed, same logits: same tokens. For a request without a seed, a random one is set here.
  uint64_t seed = 0;

  // Generated tokens at most, >= 0. 0: only absorb (and score) the prompt.
  int32_t max_tokens = kDefaultMaxTokens;
  // End-of-sequence and stop ids are masked for the first min_tokens tokens, [0, max_tokens].
  int32_t min_tokens = 0;
  // End-of-sequence ids are ordinary tokens.
  bool ignore_eos = false;
  // Ids that end the answer, usable, kMaxStopIds at most.
  std::vector<int32_t> stop_ids;

  // -1: none. k in [0, kMaxLogprobs]: of the chosen token and of the k most likely ones.
  int32_t logprobs = -1;
  // The same for each token of the prompt, the first excepted (nothing predicts it).
  int32_t prompt_logprobs = -1;
};

// Whether sampling depends on the token history.
inline bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
         params.frequency_penalty != 0.0f;
}

// The first error found, as a sentence that begins with the name of the field, and has the allowed
// and the given value; empty if the parameters are valid. Parameters that leave no id to sample are
// an error. Thread-safe.
std::optional<std::string> check(const SamplingParams& params, const SamplingVocab& vocab);

}  // namespace recurve
