#include "server/rpc/service_context.h"

#include <algorithm>
#include <utility>

#include "server/rpc/chat_prompt.h"

namespace recurve {

ServiceContext::ServiceContext(RpcOptions options_, AdmissionQueue& queue_,
                               const EngineStats& stats_, Metrics& metrics_)
    : options(std::move(options_)),
      queue(queue_),
      stats(stats_),
      metrics(metrics_),
      text(options.text_threads),
      delivery(options.delivery_threads) {}

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

grpc::Status ServiceContext::report(const grpc::Status& status,
                                    grpc::CallbackServerContext* call) const {
  if (status.ok()) return status;
  metrics.request_failed(status.error_code());
  // Retry policies of clients obey this (gRFC A6). Slots come free in about this time.
  if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
    call->AddTrailingMetadata("grpc-retry-pushback-ms", "1000");
  }
  return status;
}

}  // namespace recurve
