#pragma once
#include <functional>
#include <map>
#include <memory>

#include "model/model.h"
#include "server/engine/batch.h"
#include "server/engine/sampling_table.h"
#include "server/scheduler/scheduler.h"

namespace recurve {

// Computes steps on a device: takes the tokens that were sampled there, advances states, samples
// anew. Nothing but the results comes back. Belongs to the engine's thread.
class StepRunner {
 public:
  // All references outlive the runner.
  StepRunner(const Model& model, Backend& backend, Stream& stream, StatePool& pool,
             const SamplingVocab& vocab, const StepBounds& bounds);

  // Records the steps that only decode, one for each padded number of sequences: 1, 2, 4, 8, 16,
  // then multiples of 8 up to all slots. To be replayed from then on. progress: called after each.
  void record(const std::function<void(int done, int total)>& progress);

  // Queues the step. Batches are done in the order in which they were launched.
  void launch(Batch& batch);
  // Waits until the step is done: its results may be read.
  void finish(Batch& batch) { batch.done().wait(); }

  // Samples of one step, at most.
  static int most_samples(const StepBounds& bounds, int slots) { return bounds.logits + slots; }

 private:
  // The sizes of a step; slots of its padding are 0.
  struct Shape {
    int seqs, rows, max_len, logits, samples;
  };
  // Its inputs, one after the other.
  struct Layout {
    int32_t *begin, *planned, *decodes, *tokens, *logit_rows;
    SampleRow* samples;
  };
  static size_t words_of(const Shape& shape);
  static Layout layout(int32_t* memory, const Shape& shape);

  static Shape shape_of_decodes(int seqs) { return {seqs, seqs, 1, seqs, seqs}; }
  void begin_answers(Batch& batch);
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
  Buffer inputs_;   // as the layout says
  Buffer slots_;    // (seqs) without those whose answer has ended
  Buffer logits_;   // (logits, vocab)
  Buffer results_;  // (samples)
  Buffer top_;      // (samples, kMostTop)
  std::map<int, std::unique_ptr<Recording>> recorded_;  // by number of sequences
};

}  // namespace recurve
