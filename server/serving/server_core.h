#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "server/observe/metrics.h"
#include "server/observe/tracer.h"
#include "server/request/byte_budget.h"
#include "server/request/call_registry.h"
#include "server/request/executor.h"
#include "server/request/refusal.h"
#include "server/request/tenant_meter.h"
#include "server/serving/access.h"
#include "server/serving/served_model.h"

namespace recurve {

struct ServerCoreOptions {
  std::string version = "unknown";
  int delivery_threads = 2;   // detokenise and write
  int text_threads = 2;       // check and tokenise prompts
  int max_tokenising = 1024;  // calls that wait for those; more: kExhausted

  int64_t max_bytes_under_way = 256 << 20;  // of requests' messages; more: kExhausted
  int64_t max_gathered_bytes = 256 << 20;   // of answers that are gathered; of one, half of it
  int64_t max_prompt_tokens = 1 << 20;
  int64_t max_unbroken_bytes = 1 << 20;  // of a scored text that wait for a border between tokens
  // A slot waits so long for the rest of a scored text, or for a client that reads nothing.
  double stall_seconds = 60;
  int32_t max_generated_tokens = 1 << 20;

  std::shared_ptr<Keyring> keys = {};  // null: none, and everybody may do everything

  Tracer* tracer = nullptr;  // null: no spans are sent; outlives the server

  double drain_seconds = 30;  // for requests under way, where whoever drains names no deadline
  // What a client calls that drains the server, with its deadline in seconds, on a thread of the
  // server's: may only post. Each one does; the deadline of drain() is the server's own affair.
  // Whoever waits for it calls drain() and shuts the doors. Empty: nobody can.
  std::function<void(double seconds)> on_drain = {};
  // Called on a thread of the server's if it can no longer serve, with one line for the log: may
  // only post. Empty: the process ends.
  std::function<void(const char* what)> on_failure = {};
};

// The process, as all frontends share it: access control, calls under way, budgets, threads for
// text and delivery, metrics and traces. What belongs to one model is in ServedModel. Outlives the
// frontends, the engine, and all calls.
//
//   ServerCore core(options, model, metrics);
//   RpcServer rpc(..., core);             // listens; everything is refused
//   core.serve(tokenizer, info, chat);    // the engine runs
//   core.drain(deadline);                 // waits
//   rpc.shutdown();
//
// The engine has to run until all doors are shut: each request handed to it gets its ending.
// All methods may be called from any thread, serve() once.
class ServerCore {
 public:
  enum class State { kLoading, kServing, kDraining };

  // `metrics_` outlives it.
  ServerCore(ServerCoreOptions options_, std::shared_ptr<ServedModel> model, Metrics& metrics_);

  // The model to which a request goes, loaded or not. The request holds it until it ends.
  const std::shared_ptr<ServedModel>& model() const { return model_; }
  // Loads the model's text part, and goes from loading to serving.
  void serve(std::shared_ptr<const Tokenizer> tokenizer, ServingInfo info, Chat chat = {});
  // New requests are refused from now on.
  void stop_serving();
  // The same, and returns when the calls under way have ended. What is left at the deadline is
  // cancelled. False if there was any. A client that drains the server, before or meanwhile, may
  // have set an earlier deadline. Does not close the queue.
  bool drain(Clock::time_point deadline);
  // Waits until no call is left, but not for long: they have been cut off.
  void wait_for_last_words();
  // Calls that have not ended.
  int under_way() const { return registry.count(); }
  // What one who shares the server may have of them now.
  QueueBounds bounds_of(const Identity& caller) const;
  // And at most, where nobody else has anything under way.
  int most_at_once(const Identity& caller) const;

  // Whether what is durable can be promised: not where --state-dir was deleted or replaced.
  void set_durable(bool durable);
  bool durable() const { return durable_; }

  // `listener` is called now and whenever one of these changes, one call at a time, until it is
  // forgotten by its owner's address.
  using ServingListener = std::function<void(bool serving, bool durable)>;
  void when_serving_changes(const void* owner, ServingListener listener);
  void forget_listener(const void* owner);

  State state() const { return state_; }
  // kUnavailable unless serving.
  Refused availability() const;
  // Counts a refusal, and says when the client may come again where the server is full: when the
  // refusal says so, or when a request that came now would be served.
  Refused report(Refused refusal) const;
  // What a client sets going that drains the server, once it has its answer. There is an on_drain.
  void drain_for_client(double seconds);

  // Of the work on one text.
  WorkLimits limits(const std::atomic<bool>* unwanted) const {
    return {.unwanted = unwanted, .most_tokens = static_cast<size_t>(options.max_prompt_tokens)};
  }

  const ServerCoreOptions options;
  Metrics& metrics;
  const Clock::time_point started = Clock::now();

 private:
  void tell_listeners();
  bool is_shared(const Identity& caller) const { return access.has_keys() || caller.visitor != 0; }

  const std::shared_ptr<ServedModel> model_;
  std::atomic<State> state_{State::kLoading};
  std::atomic<bool> durable_{true};
  std::mutex mutex_;                                  // of the listeners, and while they are called
  std::map<const void*, ServingListener> listeners_;  // by owner

 public:
  Access access;        // who asks
  TenantMeter tenants;  // what each has under way
  CallRegistry registry;
  ByteBudget message_bytes;   // of requests under way
  ByteBudget gathered_bytes;  // of answers under way that are gathered before they are sent
  Executor text_threads;      // validate and tokenize what may be long
  Executor delivery_threads;  // everything that streams
};

}  // namespace recurve
