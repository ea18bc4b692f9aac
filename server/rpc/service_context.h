#pragma once
#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <atomic>
#include <optional>

#include "server/net/connections.h"
#include "server/rpc/byte_budget.h"
#include "server/rpc/executor.h"
#include "server/rpc/registry.h"
#include "server/rpc/server.h"
#include "server/rpc/validate.h"

namespace recurve {

// What the services share. Outlives them and all calls.
struct ServiceContext {
  enum class State { kLoading, kServing, kDraining };

  ServiceContext(RpcOptions options_, AdmissionQueue& queue_, const EngineStats& stats_,
                 Metrics& metrics_);

  // UNAVAILABLE unless serving.
  grpc::Status availability() const;
  // Set once, before `loaded`; read only where that is true.
  void load(std::shared_ptr<const Tokenizer> tokenizer, ServingInfo serving, Chat chat);
  // Counts the error, and tells the client when to come again where the server was full: after
  // retry_seconds, or when a request that came now would be served. Marks UNAVAILABLE as said by
  // the server.
  grpc::Status report(const grpc::Status& status, grpc::CallbackServerContext* call,
                      std::optional<double> retry_seconds = {}) const;

  const RpcOptions options;
  AdmissionQueue& queue;
  const EngineStats& stats;
  Metrics& metrics;
  const Clock::time_point started = Clock::now();

  std::atomic<State> state{State::kLoading};
  std::atomic<bool> loaded{false};
  ServingInfo info;
  RequestRules rules;

  Connections connections;
  Registry registry;
  ByteBudget message_bytes;  // of requests under way
  Executor text;             // checks and tokenises what may be long
  Executor delivery;         // everything that streams
};

}  // namespace recurve
