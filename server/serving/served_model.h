#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "server/request/admission_queue.h"
#include "server/request/engine_stats.h"
#include "server/request/serving_info.h"
#include "server/serving/validate.h"

namespace recurve {

class ConstraintCompiler;
class Metrics;

// One model that is served: what was loaded, and the way to its engine. There is one for now. A
// request asks ServerCore for its model once and holds it until it ends.
//
// load() sets `info`, `text` and `constraints`, which are constant afterwards; `queue` and `stats`
// are thread-safe.
struct ServedModel {
  explicit ServedModel(int max_queue);
  ~ServedModel();

  // Once. The limits are those of one request; `metrics` outlives this.
  void load(std::shared_ptr<const Tokenizer> tokenizer, ServingInfo served, Chat chat,
            int64_t max_prompt_tokens, int32_t max_generated_tokens, int32_t max_tokens_default,
            Metrics& metrics);
  bool loaded() const { return loaded_; }

  // Runs the engine on its thread, until stop_engine() closes the queue and waits for it.
  void start_engine(std::function<void()> run);
  void stop_engine();

  // Hands a valid command to the engine, which calls its done() unless this refuses it.
  Refused post(SessionCommand command);

  AdmissionQueue queue;
  PublishedStats stats;
  ServingInfo info;
  ModelText text;
  std::unique_ptr<ConstraintCompiler> constraints;

 private:
  std::atomic<bool> loaded_{false};
  std::thread engine_thread_;
};

}  // namespace recurve
