#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "server/observe/metrics.h"
#include "server/observe/tracer.h"
#include "server/request/byte_budget.h"
#include "server/request/call_registry.h"
#include "server/request/executor.h"
#include "server/request/refusal.h"
#include "server/request/session_names.h"
#include "server/request/tenant_meter.h"
#include "server/serving/access.h"
#include "server/serving/served_model.h"

namespace recurve {

class ModelLoader;
class SharedSessions;

struct ServerCoreOptions {
  std::string version = "unknown";
  int delivery_threads = 2;   // detokenize and write
  int text_threads = 2;       // validate and tokenize prompts
  int max_tokenising = 1024;  // calls that wait for text_threads; more: kExhausted

  int64_t max_bytes_under_way = 256 << 20;  // of request messages; more: kExhausted
  int64_t max_gathered_bytes = 256 << 20;   // of answers that are not streamed; half of it for one
  int64_t max_prompt_tokens = 1 << 20;
  int64_t max_unbroken_bytes = 1 << 20;  // of a scored text, without a token boundary
  // How long a slot waits for the rest of a scored text, or for a client that reads nothing.
  double stall_seconds = 60;
  int32_t max_generated_tokens = 1 << 20;
  int32_t max_tokens_default = 4096;  // of chats: see default_max_tokens()

  std::shared_ptr<Keyring> keys = {};  // null: none, every client may do everything

  Tracer* tracer = nullptr;  // null: no spans are sent; outlives the core

  double drain_seconds = 30;  // of a Drain call without a deadline
  // Called for each Drain call, with its deadline in seconds, on a thread of the core: may only
  // post. main then calls drain() and shuts the frontends down. Empty: clients cannot drain.
  std::function<void(double seconds)> on_drain = {};
  bool loads_models = false;  // while it serves, too: see add()
  // Called on a thread of the core if it can no longer serve, with one line for the log: may only
  // post. Empty: the process ends.
  std::function<void(const char* what)> on_failure = {};
};

// The process, as all frontends share it: access control, calls under way, budgets, threads for
// text and delivery, metrics and traces. What belongs to one model is in ServedModel. Outlives the
// frontends, the engine, and all calls.
//
//   ServerCore core(options, models, metrics);
//   RpcServer rpc(..., core);                  // listens; everything is refused
//   core.serve(model, tokenizer, info, chat);  // its engine runs; for each model
//   core.drain(deadline);                 // waits
//   rpc.shutdown();
//
// The engine runs until all frontends are shut down, so that each of its requests ends. All methods
// may be called from any thread, serve() once for each model. Models can be added and removed while
// others serve: a request uses the one that it has found, to its end.
class ServerCore {
 public:
  enum class State { kLoading, kServing, kDraining };

  // At least one model. `metrics_` outlives it.
  ServerCore(ServerCoreOptions options_, ServedModels models, Metrics& metrics_);

  // All models, loaded or not, as of now.
  ServedModels models() const { return *snapshot(); }
  // That of requests that name none. It is always there.
  ServedModel& first() const { return *first_; }
  // Whether there are several models, or can be.
  bool several() const { return several_; }
  // What decides over the model of a request.
  struct ModelChoice {
    std::string name = {};        // by the client; empty: none
    Identity caller = kStranger;  // who owns the session, and sees some adapters
    std::string session = {};     // that the request continues; empty: none
    const char* field = "model";
    bool of_failed = false;  // also a model that has failed
  };
  // The model of a request: that of its name, of its session, or the first. The name may be that of
  // an adapter, "ADAPTER" or "MODEL:ADAPTER"; the first is one of the session's model, or of the
  // first that has one. Refuses an unknown name with those there are, a session of another model,
  // and a model that has failed.
  Refused find(const ModelChoice& asked, FoundModel* found) const;
  bool all_loaded() const;
  // Loads a model's text part. With the last one, goes from loading to serving.
  void serve(ServedModel& model, std::shared_ptr<const Tokenizer> tokenizer, ServingInfo info,
             Chat chat = {});
  // Loads the text part of a model that add() adds.
  void load(ServedModel& model, std::shared_ptr<const Tokenizer> tokenizer, ServingInfo info,
            Chat chat = {});
  // Adds a model, of another name than the others, that is loaded and whose engine runs.
  void add(const std::shared_ptr<ServedModel>& model);
  // No further request finds the model, which is not the first.
  void remove(ServedModel& model);
  // What uses a removed model, and has not ended by itself, is cut.
  void end(ServedModel& model);
  // Cancelled calls end after the next step of the engine. Those that have not by then, as their
  // clients read nothing, are cut.
  static constexpr std::chrono::seconds kCancelTimeout{5};
  // The engine of a model has failed. Returns whether another one serves.
  bool model_failed(ServedModel& model);
  // New requests are refused from now on.
  void stop_serving();
  // The same, and waits until all calls have ended. At the deadline, or an earlier one of a Drain
  // call, the remaining calls are cancelled; returns false if there were any. Does not close the
  // queue.
  bool drain(Clock::time_point deadline);
  // Waits a short time for calls that were cancelled to end.
  void wait_for_cancelled_calls();
  // Calls that have not ended.
  int under_way() const { return registry.count(); }
  // How many requests this caller may have now, of one model or of all.
  QueueBounds queue_bounds_of(const Identity& caller, const ServedModel& model) const;
  QueueBounds queue_bounds_of(const Identity& caller) const;
  // The same of another queue, with slots or without, where so many are active or wait.
  QueueBounds queue_bounds(const Identity& caller, int slots, int waiting, int under_way) const;
  // The refusal of a caller that is at these bounds.
  Refusal refuse_share(const Identity& caller) const;
  // The same of one model if there are no other requests.
  int max_requests_of(const Identity& caller, const ServedModel& model) const;
  // The queue of every model is full.
  bool queues_are_full() const;

  // Counts a request of the caller against its limits, until tenants.leave(); or refuses it.
  Refused enter(const Identity& caller, Clock::time_point now);
  // The same of the queue and the slots of one model, until leave(). With one model, the queue's
  // bounds have been checked before.
  Refused enter(const Identity& caller, ServedModel& model) const;
  void leave(const Identity& caller, ServedModel& model) const;
  // Hands a command to the engine of its model: see ServedModel::post(). One that absorbs tokens
  // counts as a request, and its tokens as those of a prompt.
  Refused post(SessionCommand command);

  // The same without a look at shared sessions.
  Refused post_to_engine(SessionCommand command);

  // Sessions that servers share; null: none. Set before serve(), and outlives all calls.
  void share_sessions(SharedSessions* shared) { shared_ = shared; }
  SharedSessions* shared_sessions() const { return shared_; }

  // Loads and unloads models; null: none are. Set before serve(), and outlives all calls.
  void load_models_with(ModelLoader* loader) { loader_ = loader; }
  ModelLoader* model_loader() const { return loader_; }

  // Whether the folders of --state-dir can store states: false while one is deleted or replaced.
  void set_durable(const std::string& folder, bool durable);
  bool durable() const { return durable_; }

  // Calls `listener` now and after each change, one call at a time, until it is removed by its
  // owner.
  using ServingListener = std::function<void(bool serving, bool durable)>;
  void add_listener(const void* owner, ServingListener listener);
  void remove_listener(const void* owner);

  State state() const { return state_; }
  // Refuses with kLoading or kClosed unless serving.
  Refused availability() const;
  // The refusal of a model whose queue is closed.
  Refusal refuse_closed(const ServedModel& model) const;
  // Counts a refusal. If the client may retry later, sets when: the time of the refusal, or when a
  // request that arrives now would be served. `model`: of the request, if it is known.
  Refused report(Refused refusal, const ServedModel* model = nullptr) const;
  // Starts the drain of a Drain call, after its answer. Needs an on_drain.
  void drain_for_client(double seconds);

  // Of work on one text.
  WorkLimits limits(const std::atomic<bool>* unwanted) const {
    return {.unwanted = unwanted, .most_tokens = static_cast<size_t>(options.max_prompt_tokens)};
  }

  const ServerCoreOptions options;
  Metrics& metrics;
  const Clock::time_point started = Clock::now();

 private:
  void tell_listeners();
  bool is_shared(const Identity& caller) const { return access.has_keys() || caller.visitor != 0; }
  using Snapshot = std::shared_ptr<const ServedModels>;
  Snapshot snapshot() const {
    std::lock_guard lock(models_mutex_);
    return models_;
  }
  Refusal no_such_model(const ModelChoice& asked, const std::string& name) const;
  FoundModel find_adapter(const ModelChoice& asked, const std::string& owner) const;
  Refused post(SessionCommand command, const std::shared_ptr<ServedModel>& model) const;
  Refused list_all(SessionCommand command) const;

  mutable std::mutex models_mutex_;
  Snapshot models_;  // replaced, never changed
  const std::shared_ptr<ServedModel> first_;
  const bool several_;
  std::atomic<State> state_{State::kLoading};
  std::atomic<bool> durable_{true};
  SharedSessions* shared_ = nullptr;
  ModelLoader* loader_ = nullptr;
  std::mutex mutex_;  // of the listeners, held while they are called, and of lost_folders_
  std::set<std::string> lost_folders_;
  std::map<const void*, ServingListener> listeners_;  // by owner

 public:
  Access access;
  TenantMeter tenants;  // requests and tokens of each
  SessionNames session_names;
  CallRegistry registry;
  ByteBudget message_bytes;   // of request messages
  ByteBudget gathered_bytes;  // of answers that are not streamed
  Executor text_threads;      // validate and tokenize what may be long
  Executor delivery_threads;  // everything that streams
};

// The refusal of durability remote on a server without a store.
Refusal needs_store();

// Runs work on a request, and turns what it throws into a refusal. `field`: the field of a text
// that cannot be read.
Refused guarded(const char* field, const std::function<Refused()>& work);

}  // namespace recurve
