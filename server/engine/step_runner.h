#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "model/adapters/adapter_rows.h"
#include "model/model.h"
#include "server/engine/batch.h"
#include "server/engine/sampling_table.h"
#include "server/scheduler/scheduler.h"

namespace recurve {

// Runs steps on a device: takes the tokens that the previous step sampled there, advances the
// states, samples. Only the results are downloaded. Engine thread only.
class StepRunner {
 public:
  // All references outlive the runner. targets: of the model, if rows may have adapters; else null.
  StepRunner(const Model& model, Backend& backend, Stream& stream, StatePool& pool,
             const SamplingVocab& vocab, const StepBounds& bounds, const AdapterTargets* targets);

  // Records the steps that only decode, for replay: one for each padded number of sequences: 1, 2,
  // 4, 8, 16, then multiples of 8 up to all slots. Steps with adapters are not replayed, as a
  // recorded launch has its rows' adapters as arguments. progress: called after each.
  void record(const std::function<void(int done, int total)>& progress);

  // The largest step there may be, with anything in it: on a backend that counts what it needs.
  void run_largest();

  // Queues the step. Steps finish in the order of their launches.
  void launch(Batch& batch);
  // Waits until the results of the step may be read.
  void finish(Batch& batch) { batch.done().wait(); }

  // With memory for the results of any step.
  Batch make_batch() { return {backend_, most_.samples, most_.hidden, model_.info().width}; }

 private:
  // The sizes of a step; slots of its padding are 0.
  struct Shape {
    int seqs, rows, max_len, logits, samples, hidden = 0;
  };
  // Its inputs, one after the other.
  struct Layout {
    int32_t *begin, *planned, *decodes, *tokens, *logit_rows, *hidden_rows;
    SampleRow* samples;
  };
  static size_t words_of(const Shape& shape);
  static Layout layout(int32_t* memory, const Shape& shape);

  static Shape shape_of_decodes(int seqs) { return {seqs, seqs, 1, seqs, seqs}; }
  void begin_answers(Batch& batch);
  const StepAdapters* adapters_of(const Batch& batch);
  void upload(const StepInputs& inputs, const Shape& shape, Staging& staging);
  void compute(const Shape& shape);
  void download(Batch& batch);

  const Model& model_;
  Backend& backend_;
  Stream& stream_;
  StatePool& pool_;
  Arena arena_;
  SamplingTable table_;
  const Shape most_;
  std::optional<AdapterRows> adapters_;  // none: no row has an adapter
  Buffer inputs_;                        // as the layout says
  Buffer slots_;                         // (seqs) without those whose answer has ended
  Buffer logits_;                        // (logits, vocab)
  Buffer hidden_;                        // (hidden, width)
  Buffer results_;                       // (samples)
  Buffer top_;                           // (samples, kMostTop)
  std::map<int, std::unique_ptr<Recording>> recorded_;  // by number of sequences
};

}  // namespace recurve
