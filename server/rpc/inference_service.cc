#include "server/rpc/inference_service.h"

#include <fmt/format.h>

#include <chrono>

#include "server/rpc/generate_call.h"
#include "server/rpc/messages.h"
#include "server/rpc/score_call.h"
#include "server/rpc/status.h"
#include "server/rpc/unary_call.h"

namespace recurve {
namespace {

using grpc::Status;
using grpc::StatusCode;

Status tokenize(const ServiceContext& context, const grpc::ByteBuffer& request,
                const WorkLimits& limits, grpc::ByteBuffer* response) {
  v1::TokenizeRequest message;
  std::vector<int32_t> ids;
  Status status = parse(request, &message);
  if (status.ok()) status = tokenise(message, context.rules, limits, &ids);
  if (!status.ok()) return status;
  v1::TokenizeResponse answer;
  for (const int32_t id : ids) {
    answer.add_ids(id);
    if (!message.with_bytes()) continue;
    const std::string_view bytes = context.rules.tokenizer->token_bytes(id);
    answer.add_token_bytes(bytes.data(), bytes.size());
  }
  *response = serialise(answer);
  return {};
}

Status detokenize(const ServiceContext& context, const grpc::ByteBuffer& request,
                  const WorkLimits& limits, grpc::ByteBuffer* response) {
  v1::DetokenizeRequest message;
  Status status = parse(request, &message);
  if (!status.ok()) return status;
  const std::vector<int32_t> ids(message.ids().begin(), message.ids().end());
  status = check_ids("ids", ids, context.rules);
  if (status.ok() && !context.rules.tokenizer->reads_text()) {
    status = invalid("ids have no text, as this server has no tokenizer");
  }
  if (!status.ok()) return status;
  limits.check();
  v1::DetokenizeResponse answer;
  answer.set_text(decode(*context.rules.tokenizer, ids,
                         message.continued() ? TextPosition::kContinued : TextPosition::kStart));
  *response = serialise(answer);
  return {};
}

Status abort_request(ServiceContext& context, const grpc::ByteBuffer& request,
                     grpc::ByteBuffer* response) {
  v1::AbortRequest message;
  Status status = parse(request, &message);
  if (status.ok()) status = check_name("request_id", message.request_id());
  if (!status.ok()) return status;
  if (!context.registry.abort(message.request_id())) {
    return {StatusCode::NOT_FOUND,
            fmt::format("no request \"{}\" is under way", message.request_id())};
  }
  *response = serialise(v1::AbortResponse());
  return {};
}

// Texts may be long: on the text executor.
using TextWork = Status (*)(const ServiceContext& context, const grpc::ByteBuffer& request,
                            const WorkLimits& limits, grpc::ByteBuffer* response);
grpc::ServerUnaryReactor* answer_later(ServiceContext& context, grpc::CallbackServerContext* call,
                                       const grpc::ByteBuffer* request, grpc::ByteBuffer* response,
                                       TextWork work) {
  auto* unary = new UnaryCall(context, call);
  const Status available = context.availability();
  if (available.ok()) {
    const Clock::time_point arrival = Clock::now();
    unary->try_answer_on_text(static_cast<int64_t>(request->Length()), [=, &context] {
      const Clock::time_point began = Clock::now();
      const Status status = work(context, *request, unary->limits(), response);
      const std::chrono::duration<double> waited = began - arrival, worked = Clock::now() - began;
      context.metrics.observe_text(waited.count(), worked.count());
      return status;
    });
  } else {
    unary->finish(available);
  }
  return unary;
}

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Generate(
    grpc::CallbackServerContext* call, const grpc::ByteBuffer* request) {
  return new GenerateCall(context_, call, request);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* InferenceService::Score(
    grpc::CallbackServerContext* call) {
  return new ScoreCall(context_, call);
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* call,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return answer_later(context_, call, request, response, tokenize);
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* call,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
  return answer_later(context_, call, request, response, detokenize);
}

// In every state: what is under way while the server drains can be aborted too.
grpc::ServerUnaryReactor* InferenceService::Abort(grpc::CallbackServerContext* call,
                                                  const grpc::ByteBuffer* request,
                                                  grpc::ByteBuffer* response) {
  auto* unary = new UnaryCall(context_, call);
  unary->finish(abort_request(context_, *request, response));
  return unary;
}

}  // namespace recurve
