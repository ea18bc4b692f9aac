#pragma once
#include <span>

#include "kernels/backend.h"
#include "server/engine/staging.h"
#include "server/sampling/params.h"
#include "server/sampling/sampled_token.h"
#include "server/sampling/token_history.h"

namespace recurve {

// Sampling parameters and progress of each slot, in device memory, where the kernels read and write
// them. Engine thread only; copies go through the stream.
class SamplingTable {
 public:
  // The backend outlives the table.
  SamplingTable(Backend& backend, const SamplingVocab& vocab, int slots, Stream& stream);

  // The slot begins an answer, or continues one that has come as far as `progress` in another slot.
  // history: all tokens before the next one, this request's prompt included. Uploads are staged in
  // `staging`.
  void begin(int32_t slot, const SamplingParams& params, const TokenHistory& history,
             Staging& staging, Stream& stream, const SampleProgress& progress = {});

  // Sets the mask of the slot's next token. For an answer with a constraint, before each token.
  void allow(int32_t slot, std::span<const uint32_t> mask, Staging& staging, Stream& stream);

  // The arguments of the sampling kernel. rows, results and top are in device memory.
  SampleArgs args(const float* logits, std::span<const SampleRow> rows, SampleResult* results,
                  TopLogit* top) const;
  SampleProgress* progress() const { return progress_.as<SampleProgress>(); }

 private:
  Backend& backend_;
  const SamplingVocab vocab_;
  const size_t words_;  // of a mask of ids
  // (slots + 1, ...): see SampleTable
  Buffer params_, progress_, ends_, allowed_, biased_, biases_, prompt_, answer_;
};

// Converts the kernel's result of a row. top: that row's.
SampledToken token_of(const SampleResult& result, std::span<const TopLogit> top);

}  // namespace recurve
