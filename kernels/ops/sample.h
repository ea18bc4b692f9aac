#pragma once
#include <cstdint>

#include "kernels/ops/op.h"

namespace recurve {

// From logits to token ids, by slot. A row passes through, in this order,
//
//   mask (ids not allowed; before min_tokens: ids that end the answer) -> bias
//   -> repetition, presence, frequency penalty -> temperature
//   -> top_k -> typical_p -> top_p -> min_p -> draw
//
// the order of vLLM and of Hugging Face's generate() where those two agree; each filter works on
// what the one before it left, renormalised. Sources: top_p Holtzman et al. 2020 (arXiv
// 1904.09751); typical_p Meister et al. 2023 (arXiv 2202.00666); min_p Nguyen et al. 2024 (arXiv
// 2407.01082); repetition penalty Keskar et al. 2019 (arXiv 1909.05858), as in Hugging Face: once
// for an id, however often it occurred; presence and frequency as in the OpenAI API: answer only.
//
// Greedy takes the greatest logit, the lowest id of equals. Otherwise each id has a whole weight
// (sample_math.h). top_k and top_p keep the first ids in the order of logits, typical_p in the
// order of |nats - mean of nats|, which is that of |-log p - entropy|; ids as near as 2^-46 count
// as equal and go by id. The draw inverts the cumulative weight of what is left in the order of
// ids. Its uniform number is Philox 4x32-10 keyed by the seed and counted by the token's index, so
// there is no generator state to save or to fork, and a row's result depends on nothing but the row
// and its slot. All backends give the same ids for the same logits.

// How a slot wants its tokens chosen.
struct SampleParams {
  float temperature;  // 0: greedy
  float top_p, min_p, typical_p;
  int32_t top_k;  // 0: all
  float repetition_penalty, presence_penalty, frequency_penalty;
  uint64_t seed;
  int32_t min_tokens, max_tokens;  // of the answer
  int32_t biases;                  // ids whose logits something is added to, <= kMostBiases
  // Which of the slot's arrays are in use; the others hold anything.
  bool masked, penalised;
};
constexpr int32_t kMostBiases = 1024;

struct SampleBias {
  int32_t id;
  float value;  // added to its logit
};

// How far a slot's answer has come.
struct SampleProgress {
  int32_t token;      // sampled last
  int32_t generated;  // tokens of the answer so far
  int32_t ended;      // by its last token, or by an error; so is slot 0 always
};

// Everything by slot, slot 0 first. `words` is V / 32, rounded up: sets of ids are kept as bits.
// What grows with V is 2 bytes and 4 bits an id.
struct SampleTable {
  int words;
  const SampleParams* params;  // (slots + 1)
  const uint32_t* ends;        // (slots + 1, words) ids that end the answer
  const uint32_t* allowed;     // (slots + 1, words) ids that may be sampled, if masked
  const uint32_t* biased;      // (slots + 1, words) ids that have a bias, if there are biases
  const SampleBias* biases;    // (slots + 1, kMostBiases) in the order of ids
  const uint32_t* prompt;      // (slots + 1, words) ids that the prompt has, if penalised
  uint16_t* answer;            // (slots + 1, V) how often the answer has the id, if penalised
  SampleProgress* progress;    // (slots + 1)
};
constexpr uint16_t kMostInAnswer = 65535;  // and what is more often counts as that

// What is wanted of one row of logits.
struct SampleRow {
  int32_t logits;  // its number
  // A token is sampled for this slot, whose progress is written. If the slot's answer has ended,
  // nothing is done. No slot has two rows of a step.
  int32_t slot;
  int32_t scored;     // -1, or: nothing is sampled, it is said how likely this id is
  int32_t top;        // -1: no log-probabilities; else: so many likeliest ids too, <= kMostTop
  int32_t first_top;  // where those go
};
constexpr int32_t kMostTop = 100;

enum class SampleStatus : int32_t {
  kDone,
  kNotFinite,  // a NaN or +infinity among the logits, also of ids that are masked
  kNothing,    // all ids are masked or -infinity
  kEnded,      // the slot's answer has ended before
};

struct SampleResult {
  int32_t id;  // -1 unless done
  SampleStatus status;
  // If top >= 0: log-probabilities are logit - (max + log(sum / kWeightUnit)), those of the model
  // itself, before masks, bias, penalties and filters.
  float logit;  // of the id
  float max;    // of the row
  uint64_t sum;
};

struct TopLogit {
  int32_t id;  // -1: there are no more ids that are possible at all
  float logit;
};

struct SampleArgs {
  int count;
  int64_t stride;         // from one row of logits to the next
  int V;                  // ids [0, V) have a token; what follows in a row is never read
  const float* logits;    // (rows, stride)
  const SampleRow* rows;  // (count)
  SampleTable table;
  SampleResult* results;  // (count)
  TopLogit* top;          // (first_top + top of all rows), likeliest first, ties: lower id
};

struct SampleKernel {
  static constexpr const char* kName = "sample";
  Op<SampleArgs> sample;
  static constexpr auto kOp = &SampleKernel::sample;
};

}  // namespace recurve
