#include "server/rpc/service_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/rpc/chat_prompt.h"

namespace recurve {
namespace {

// Seconds after which a client that was refused may come again: not so soon that refusing becomes
// the work, nor so late that nobody is there when there is room.
constexpr double kSoonest = 0.1, kLatest = 60;

}  // namespace

ServiceContext::ServiceContext(RpcOptions options_, AdmissionQueue& queue_,
                               const EngineStats& stats_, Metrics& metrics_)
    : options(std::move(options_)),
      queue(queue_),
      stats(stats_),
      metrics(metrics_),
      connections(connection_limits(options.max_connections, options.max_connections_by_address)),
      message_bytes(options.max_bytes_under_way),
      text(options.text_threads, options.on_failure),
      delivery(options.delivery_threads, options.on_failure) {}

grpc::Status ServiceContext::availability() const {
  switch (state.load()) {
    case State::kServing:
      return {};
    case State::kLoading:
      return {grpc::StatusCode::UNAVAILABLE, "the server is loading its model: try again soon"};
    case State::kDraining:
      break;
  }
  return {grpc::StatusCode::UNAVAILABLE, "the server is draining: use another one"};
}

void ServiceContext::load(std::shared_ptr<const Tokenizer> tokenizer, ServingInfo serving,
                          Chat chat) {
  info = std::move(serving);
  rules.vocab = {.rows = info.vocab_rows,
                 .usable = std::min(tokenizer->size(), info.vocab_rows),
                 .eos_ids = info.tokens.eos};
  rules.answer_end = find_answer_end(chat, *tokenizer);
  rules.chat = std::move(chat);
  rules.tokenizer = std::move(tokenizer);
  rules.tokens = info.tokens;
  rules.max_prompt_tokens = options.max_prompt_tokens;
  rules.max_generated_tokens = options.max_generated_tokens;
  rules.max_choices = info.slots;
  loaded = true;
}

grpc::Status ServiceContext::report(const grpc::Status& status, grpc::CallbackServerContext* call,
                                    std::optional<double> retry_seconds) const {
  if (status.ok()) return status;
  metrics.request_failed(status.error_code());
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    // gRPC has this code for a connection that was lost, too; only the server sends this with it.
    call->AddTrailingMetadata("recurve-state", state == State::kLoading ? "loading" : "draining");
  }
  if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
    const double seconds = retry_seconds.value_or(stats.expected_queue_seconds);
    const double sensible = std::clamp(seconds, kSoonest, kLatest);
    // Retry policies of clients obey this (gRFC A6).
    call->AddTrailingMetadata("grpc-retry-pushback-ms", fmt::format("{:.0f}", 1000 * sensible));
  }
  return status;
}

}  // namespace recurve
