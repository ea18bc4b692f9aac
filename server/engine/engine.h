#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "model/model.h"
#include "server/engine/sequence.h"
#include "server/observe/metrics.h"
#include "server/request/admission_queue.h"
#include "server/request/engine_stats.h"
#include "server/sampling/sampler.h"
#include "server/scheduler/scheduler.h"
#include "server/session/session_store.h"

namespace recurve {

struct EngineOptions {
  int slots = 16;           // sequences that can run at once, and idle sessions kept at hand
  int rows_per_step = 256;  // tokens of one step; raised to slots + chunk if it is less
  SessionLimits sessions;
};

// Runs requests to their end, one step at a time, on one thread: continuous batching over a pool of
// states. Knows token ids only.
//
// Whatever runs beside it, a request gives the same tokens, to the bit: prompts are cut only on the
// model's chunk grid counted from the request's first token, the kernels treat every row on its
// own, and sampling depends on nothing but the row, the request and the index of the token.
class Engine {
 public:
  // All references outlive the engine.
  Engine(const Model& model, Backend& backend, const SamplingVocab& vocab, AdmissionQueue& queue,
         EngineStats& stats, Metrics& metrics, const EngineOptions& options);

  // Steps until the queue is closed and all that was in it has ended. Belongs to one thread.
  void run();
  // Any thread: run() ends what is left with kDraining and returns.
  void abandon();

  // One step. False if there was nothing to compute.
  bool step();

 private:
  // What one sequence brings to a step.
  struct Member {
    Sequence* sequence;
    int rows;
    int first_logits;  // its first row of logits_
  };

  void take_arrivals(Clock::time_point now);
  void end_unwanted(Clock::time_point now);
  void admit(Clock::time_point now);
  bool gather();
  void forward();
  void deliver();
  void retire(Clock::time_point now);
  void report(Clock::time_point began, int rows);

  void arrive(Request request);
  std::vector<int32_t> input_of(const Request& request, const Session* session) const;
  Ending refusal(const Request& request, const Session* session,
                 const std::vector<int32_t>& input) const;
  void obey(Sequence& sequence, Clock::time_point now);
  void give_up(const Waiting& waiting, Finish why, Clock::time_point now);
  bool make_room(size_t slots);
  void start(Waiting waiting, Clock::time_point now);
  Pending pending_of(const Sequence& sequence) const;
  void add_member(Sequence& sequence, const Pending& pending, int rows);
  const float* logits_row(int row) const;
  static void note_absorbed(Sequence& sequence, int rows);
  void score_prompt(Sequence& sequence, const Member& member);
  void fork_choices(Sequence& sequence, const float* logits);
  void sample(Sequence& sequence, const float* logits);
  void end(Sequence& sequence, Finish why, int32_t stop_id = -1, const char* message = "");
  Ending ending(const Sequence& sequence, Finish why) const;
  std::optional<Clock::time_point> next_event() const;
  void end_everything();

  const Model& model_;
  Backend& backend_;
  AdmissionQueue& queue_;
  EngineStats& stats_;
  Metrics& metrics_;
  const StepBounds bounds_;
  std::unique_ptr<Stream> stream_;
  StatePool pool_;
  SessionStore sessions_;
  Arena arena_;
  Sampler sampler_;

  std::deque<Waiting> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;
  std::vector<std::unique_ptr<Sequence>> forked_;  // join running_ at the end of the step
  size_t first_prompt_ = 0;                        // whose turn it is
  Clock::time_point next_housekeeping_;
  std::atomic<bool> abandoned_{false};

  // This step's batch; the buffers are kept from step to step.
  std::vector<Member> batch_;
  std::vector<Pending> pending_;
  std::vector<int32_t> tokens_, begin_, slots_, logit_rows_;
  int max_len_ = 0;
  Buffer device_input_;        // begin, slots, tokens, logit_rows
  Buffer device_logits_;       // (bounds.logits, vocab)
  std::vector<float> logits_;  // (bounds.logits, vocab)
};

}  // namespace recurve
