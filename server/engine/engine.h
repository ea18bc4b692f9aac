#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "model/model.h"
#include "server/engine/batch.h"
#include "server/engine/delivery.h"
#include "server/engine/sequence.h"
#include "server/engine/step_runner.h"
#include "server/engine/waiting_line.h"
#include "server/observe/engine_metrics.h"
#include "server/prefix/prefix_cache.h"
#include "server/request/admission_queue.h"
#include "server/request/engine_stats.h"
#include "server/scheduler/pace.h"
#include "server/scheduler/scheduler.h"
#include "server/session/session_store.h"

namespace recurve {

struct EngineOptions {
  int slots = 16;           // sequences that can run at once, and idle sessions kept at hand
  int rows_per_step = 256;  // tokens of one step; raised to slots + chunk if it is less
  // How long a step may take in which somebody waits for the next token: prompts take less of it
  // where it would be longer, but a chunk always. 0: however long.
  double step_seconds = 0;
  // To the first token of a request: it is refused where others would make it later; 0: never.
  double ttft_seconds = 0;
  SessionLimits sessions;
  PrefixLimits prefix = {};
  // What the bits of a state depend on in addition to model, weights and chunk: program, device,
  // kernels.
  std::string made_by = {};
  // Whether a step is launched before the tokens of the one before it are delivered, so that the
  // device never waits. Not said: where the device works on its own.
  std::optional<bool> launch_ahead = {};
  // Called at the start, while steps are recorded on devices that replay them.
  std::function<void(int done, int total)> on_recorded = {};
  // Called once, on run()'s thread, if the engine fails: a device that does, memory that the system
  // does not give where no single request can be refused for it, a bug. All requests have ended
  // with kFailed then. what: one line, for the log.
  std::function<void(const char* what)> on_failure = {};
};

// Runs requests to their end, one step at a time, on one thread: continuous batching over a pool of
// states. Knows token ids only.
//
// A step is launched and finished. In between, where the device works on its own, the step before
// it is delivered: tokens stay on the device, and so the next step needs nothing that is not there.
// A sequence that turns out to have ended takes no part in the step launched meanwhile: the device
// knows before the host does.
//
// The tokens that an answer with a constraint may continue with follow from its last token. Mask
// threads compute them while other sequences run: a step waits for them for a short time that no
// client notices, and goes without the sequence if it takes longer.
//
// Whatever runs concurrently, a request gives the same tokens, to the bit: prompts are cut only on
// the model's chunk grid counted from the request's first token, the kernels treat every row on its
// own, and sampling depends on nothing but the row, the request and the index of the token.
class Engine {
 public:
  // All references outlive the engine.
  Engine(const Model& model, Backend& backend, const SamplingVocab& vocab, AdmissionQueue& queue,
         EngineStats& stats, EngineMetrics& metrics, const EngineOptions& options);

  // Steps until the queue is closed and all that was in it has ended, or until the engine fails.
  // Belongs to one thread.
  void run();
  // Any thread: run() ends what is left with kDraining and returns.
  void abandon();

  // One step. False if there was nothing to compute.
  bool step();
  // Whether states are on their way. Sequences wait for theirs; the queue is woken when it is
  // there.
  bool copying() const { return pool_.copying(); }

 private:
  void end_unwanted(Clock::time_point now);
  void admit(Clock::time_point now);
  void gather(Clock::time_point now, Batch& batch);
  void fork_choices(Sequence& sequence, Batch& batch, Clock::time_point now);
  void guide(Sequence& sequence);
  void await_masks();
  static std::unique_ptr<Sequence> choice_of(const Sequence& sequence, size_t index,
                                             StateSlot slot);
  void store_prefixes(const Batch& launched);
  void finish(Batch& batch);
  void retire(Clock::time_point now);
  void commit_answer(Sequence& sequence, Clock::time_point now);
  void report(const Batch* finished);

  EngineLoad load() const { return {running_, pace_, holds_}; }
  void report_slots();
  std::optional<Clock::time_point> next_event() const;
  void work();
  void end_everything();
  void fail(const char* what) noexcept;

  AdmissionQueue& queue_;
  EngineStats& stats_;
  EngineMetrics& metrics_;
  const StepBounds bounds_;
  std::unique_ptr<Stream> stream_;
  StatePool pool_;
  StateCache states_;  // outside slots
  SessionStore sessions_;
  PrefixCache prefixes_;
  WaitingLine waiting_;
  StepRunner runner_;
  const SamplingVocab vocab_;
  MaskWorkers masks_;
  Delivery delivery_;
  const bool launch_ahead_;
  const std::function<void(const char* what)> on_failure_;
  Batch batches_[2];
  Batch* under_way_ = nullptr;  // launched, not finished

  std::vector<std::unique_ptr<Sequence>> running_;
  std::vector<std::unique_ptr<Sequence>> forked_;  // join running_ at the end of gather()
  std::vector<StepCandidate> candidates_;          // of running_
  Pace pace_;
  HoldTimeEstimator holds_;
  Turns turns_;                    // of plan_step
  Clock::time_point last_finish_;  // of a step
  Clock::time_point next_housekeeping_;
  std::atomic<bool> abandoned_{false};
};

}  // namespace recurve
