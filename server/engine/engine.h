#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
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
#include "server/scheduler/admission.h"
#include "server/scheduler/pace.h"
#include "server/scheduler/preemption.h"
#include "server/scheduler/scheduler.h"
#include "server/session/session_store.h"

namespace recurve {

struct EngineOptions {
  int slots = 16;  // sequences that run at once, and idle sessions with their state in a slot
  int rows_per_step = 256;  // tokens of one step; at least slots + chunk is used
  // Bound of the duration of a step with decodes: prompts get fewer rows to meet it, but at least
  // one chunk. 0: none.
  double step_seconds = 0;
  // A request is refused if its first token would take longer because of others.
  FirstTokenBound first_token = {};
  // Of models whose states grow: how many pages there are, and the most tokens of a state.
  PageLimits pages = {};
  // Host memory for states of preempted requests. While more is in use, tenants that have such
  // requests start no new ones; while twice as much is, no tenant does.
  int64_t preempted_bytes = int64_t{1} << 40;
  SessionLimits sessions;
  PrefixLimits prefix = {};
  // Of the model, if requests may have adapters: steps plan memory for them. Null: none has one.
  std::shared_ptr<const AdapterTargets> adapters = {};
  // Identifies what the bits of a state depend on in addition to model, weights and chunk: program,
  // device, kernels.
  std::string made_by = {};
  // Launch a step before the tokens of the previous one are delivered, so that the device does not
  // wait. Absent: if the device works asynchronously.
  std::optional<bool> launch_ahead = {};
  // Called during the constructor, on devices that replay recorded steps.
  std::function<void(int done, int total)> on_recorded = {};
  // Called once, on run()'s thread, if the engine fails: a device error, a failed allocation that
  // concerns no single request, or a bug. All requests have ended with kFailed by then. what: one
  // line for the log.
  std::function<void(const char* what)> on_failure = {};
};

// Runs requests to their end, one step at a time, on one thread: continuous batching over a pool of
// states. Knows token ids only.
// On an asynchronous device, the tokens of a step are delivered while the next one runs: sampled
// tokens stay on the device, so the next step needs nothing from the host. The device skips a
// sequence that ended in the previous step, before the host knows of the end.
// The mask of an answer with a constraint depends on its last token. Mask threads compute it while
// other sequences run. A step waits for masks for a bounded time, and leaves out sequences whose
// mask is not ready.
//
// Whatever runs concurrently, a request gives the same tokens, to the bit: prompts are cut only on
// the model's chunk grid counted from the request's first token, the kernels treat every row on its
// own, and sampling depends on nothing but the row, the request and the index of the token.
class Engine {
 public:
  // All references outlive the engine.
  Engine(const Model& model, Backend& backend, const SamplingVocab& vocab, AdmissionQueue& queue,
         PublishedStats& stats, EngineMetrics& metrics, const EngineOptions& options);

  // Steps until the queue is closed and all that was in it has ended, or until the engine fails.
  // Belongs to one thread.
  void run();
  // Any thread: run() ends the remaining requests with kDraining and returns.
  void abandon();

  // Of an engine in a dry run: calls the ops of the largest step, which count their scratch.
  void call_largest_step() { runner_.run_largest(); }

  // One step. False if there was nothing to compute.
  bool step();
  // States are being copied. Sequences wait for theirs; the end of a copy wakes the queue.
  bool copying() const { return pool_.copying(); }

 private:
  // A sequence that a step left out.
  struct ShortOfPages {
    Sequence* sequence;
    int32_t pages;  // missing
  };

  void end_unwanted(Clock::time_point now);
  void admit(Clock::time_point now);
  void gather(Clock::time_point now, Batch& batch);
  int32_t pages_to_come();
  std::vector<PageHolder> page_holders(bool slots = false) const;
  void find_pages_for(std::span<const ShortOfPages> left_out);
  void make_way_for(const Need& need);
  bool preempt();
  void preempt(std::unique_ptr<Sequence>& sequence);
  void fork_choices(Sequence& sequence, Batch& batch, Clock::time_point now);
  void guide(Sequence& sequence);
  void await_masks();
  static std::unique_ptr<Sequence> choice_of(const Sequence& sequence, size_t index,
                                             StateSlot slot);
  void store_prefixes(const Batch& launched);
  void finish(Batch& batch);
  void retire(Clock::time_point now);
  void release(Sequence& sequence, Clock::time_point now);
  void end_replay(Sequence& sequence, Clock::time_point now);
  void commit_answer(Sequence& sequence, std::optional<StateSlot> slot, Snapshot at,
                     Clock::time_point now);
  void report(const Batch* finished);

  EngineLoad load() const { return {running_, pace_, holds_}; }
  void report_states();
  void publish();
  std::optional<Clock::time_point> next_event() const;
  void work();
  void end_everything();
  void fail(const char* what) noexcept;

  AdmissionQueue& queue_;
  EngineStats stats_;  // as published last, with what has changed since
  PublishedStats& published_;
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
