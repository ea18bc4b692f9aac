#pragma once
#include <span>

#include "kernels/backend.h"
#include "server/engine/staging.h"
#include "server/sampling/params.h"
#include "server/sampling/sampled_token.h"
#include "server/sampling/token_history.h"

namespace recurve {

// How each slot samples and how far its answer has come, in the memory of the device, where the
// kernels read and write it. Belongs to the engine's thread; copies go through the stream.
class SamplingTable {
 public:
  // The backend outlives the table.
  SamplingTable(Backend& backend, const SamplingVocab& vocab, int slots, Stream& stream);

  // The slot's next rows begin a new answer. history: what has been said before, this request's
  // prompt included. What is copied lies in `staging` meanwhile.
  void begin(int32_t slot, const SamplingParams& params, const TokenHistory& history,
             Staging& staging, Stream& stream);

  // The slot's next token is one of these ids: of an answer with a constraint, before each.
  void allow(int32_t slot, std::span<const uint32_t> mask, Staging& staging, Stream& stream);

  // What a step's kernel gets: rows, results and top in the memory of the device.
  SampleArgs args(const float* logits, std::span<const SampleRow> rows, SampleResult* results,
                  TopLogit* top) const;
  SampleProgress* progress() const { return progress_.as<SampleProgress>(); }

 private:
  Backend& backend_;
  const SamplingVocab vocab_;
  const size_t words_;  // of a set of ids
  // (slots + 1, ...): see SampleTable
  Buffer params_, progress_, ends_, allowed_, biased_, biases_, prompt_, answer_;
};

// What the kernel has said of a row, in the words of the clients. top: what belongs to the row.
SampledToken token_of(const SampleResult& result, std::span<const TopLogit> top);

}  // namespace recurve
