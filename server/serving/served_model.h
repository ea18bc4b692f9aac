#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/request/admission_queue.h"
#include "server/request/clock.h"
#include "server/request/engine_stats.h"
#include "server/request/serving_info.h"
#include "server/request/tenant_meter.h"
#include "server/serving/validate.h"

namespace recurve {

class ConstraintCompiler;
class ModelMetrics;

// One model that is served: what was loaded, and the way to its engine. A request finds its model
// in ServerCore when its message has been read, and holds it until it ends.
//
// load() sets `info`, `text`, `constraints` and `metrics`, which are constant afterwards; `queue`
// and `stats` are thread-safe.
struct ServedModel {
  explicit ServedModel(int max_queue);
  ~ServedModel();

  // Once. The limits are those of one request.
  void load(std::shared_ptr<const Tokenizer> tokenizer, ServingInfo served, Chat chat,
            int64_t max_prompt_tokens, int32_t max_generated_tokens, int32_t max_tokens_default,
            std::shared_ptr<ModelMetrics> its_metrics);
  bool loaded() const { return loaded_; }
  const std::string& name() const { return info.model_name; }

  // The engine has failed: requests are refused from now on.
  void set_failed() { failed_ = true; }
  bool failed() const { return failed_; }

  // Requests are refused from now on, as the model is about to be unloaded.
  void set_unloading() { unloading_ = true; }
  bool unloading() const { return unloading_; }
  // Nothing may use the model any more: exported states are gone, and calls are cut that are poked
  // after this.
  void end();
  bool ended() const { return ended_; }
  // The state that this model has exported, until end().
  std::shared_ptr<StateSource> lend(std::shared_ptr<ServedModel> self,
                                    std::shared_ptr<StateSource> state);

  // Runs the engine on its thread, until stop_engine() closes the queue and waits for it.
  void start_engine(std::function<void()> run);
  void stop_engine();

  // Hands a valid command to the engine, which calls its done() unless this refuses it. The result
  // is in the audit log.
  Refused post(SessionCommand command);
  Refused post_unaudited(SessionCommand command);

  AdmissionQueue queue;
  PublishedStats stats;
  TenantMeter tenants;  // requests of each, which share the queue and the slots
  ServingInfo info;
  ModelText text;
  std::unique_ptr<ConstraintCompiler> constraints;
  std::shared_ptr<ModelMetrics> metrics;

 private:
  class LentState;

  std::atomic<bool> loaded_{false}, failed_{false}, unloading_{false}, ended_{false};
  std::mutex lent_mutex_;
  std::vector<std::weak_ptr<LentState>> lent_;
  std::thread engine_thread_;
};
using ServedModels = std::vector<std::shared_ptr<ServedModel>>;

// Whether requests use a model. Thread-safe.
class ModelUse {
 public:
  // The reference for ServerCore, and by it for requests. Once.
  std::shared_ptr<ServedModel> begin(std::shared_ptr<ServedModel> model);
  // Waits until the last copy of that reference is gone: false if it is not by then, or at
  // stop_waiting().
  bool wait_for_end(Clock::time_point until) const;
  void stop_waiting();

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool ended = false, stopped = false;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

// What the engines and queues of models have to do, in sum; expected_queue_seconds is the longest.
struct ModelLoad {
  EngineStats stats;
  int waiting = 0, max_queue = 0;
  int64_t page_bytes = 0;  // of all pages
};
ModelLoad load_of(const ServedModels& models);

// Adds the result of the command to the audit log.
void audit_result(SessionCommand* command);

}  // namespace recurve
