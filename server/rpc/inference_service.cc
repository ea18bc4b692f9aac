#include <fmt/format.h>

#include <utility>

#include "recurve/v1/inference.pb.h"
#include "server/rpc/calls.h"
#include "server/rpc/conversions.h"
#include "server/rpc/messages.h"
#include "server/rpc/raw_service.h"
#include "server/rpc/unary_call.h"
#include "server/serving/gathered_answer.h"

namespace recurve {
namespace {

// A call of Tokenize or Detokenize.
struct TextCall {
  ServerCore& core;
  const Identity& caller;
  const grpc::ByteBuffer& request;
  const WorkLimits& limits;
  ByteBudget::Share* share;  // for the response
  grpc::ByteBuffer* response;
};

// Parses the message, and finds the model that it names.
template <typename Message>
Refused read(const TextCall& call, Message* message, FoundModel* model) {
  Refused refused = parse(call.request, message);
  return refused ? refused : call.core.find({message->model(), call.caller}, model);
}

Refused tokenize(const TextCall& call) {
  v1::TokenizeRequest message;
  FoundModel served;
  std::vector<int32_t> ids;
  if (Refused refused = read(call, &message, &served)) return refused;
  const ModelText& model = served->text;
  const bool with_bytes = message.with_bytes();
  // Only prompts have a limit of tokens.
  WorkLimits work = call.limits;
  if (!message.has_messages()) work.most_tokens = SIZE_MAX;
  if (Refused refused = tokenise(to_text(std::move(message)), model, work, &ids)) {
    return refused;
  }
  constexpr int64_t kId = 16, kBytes = 128, kCopies = 3;
  auto bytes = static_cast<int64_t>(ids.size()) * (with_bytes ? kId + kBytes : kId);
  if (with_bytes) bytes += kCopies * bytes_in_json(ids, *model.tokenizer);
  if (Refused refused = reserve_answer(call.core, call.caller, "text", bytes, call.share)) {
    return refused;
  }
  v1::TokenizeResponse answer;
  for (const int32_t id : ids) {
    answer.add_ids(id);
    if (!with_bytes) continue;
    const std::string_view bytes = model.tokenizer->token_bytes(id);
    answer.add_token_bytes(bytes.data(), bytes.size());
  }
  *call.response = serialize(answer);
  return {};
}

Refused detokenize(const TextCall& call) {
  v1::DetokenizeRequest message;
  FoundModel served;
  if (Refused refused = read(call, &message, &served)) return refused;
  const ModelText& model = served->text;
  const std::vector<int32_t> ids(message.ids().begin(), message.ids().end());
  Refused refused = check_ids("ids", ids, model);
  if (!refused && !model.tokenizer->reads_text()) {
    refused = invalid("ids", "ids have no text, as this server has no tokenizer");
  }
  if (!refused) {
    constexpr int64_t kCopies = 5;
    const int64_t bytes = kCopies * bytes_in_json(ids, *model.tokenizer);
    refused = reserve_answer(call.core, call.caller, "ids", bytes, call.share);
  }
  if (refused) return refused;
  call.limits.check();
  v1::DetokenizeResponse answer;
  answer.set_text(decode(*model.tokenizer, ids,
                         message.continued() ? TextPosition::kContinued : TextPosition::kStart));
  *call.response = serialize(answer);
  return {};
}

// Aborts a request of the caller's tenant; with `others`, of any tenant.
bool abort_any(CallRegistry& registry, const Identity& caller, bool others, const std::string& id) {
  if (registry.abort(caller.tenant, id)) return true;
  if (!others) return false;
  const bool found = registry.abort_of_any(id);
  audit("abort_of_other", auditee(caller), found ? "OK" : "NOT_FOUND", id);
  return found;
}

Refused abort_request(const ServiceContext& context, const grpc::CallbackServerContext* call,
                      const std::string& id) {
  Identity caller;
  Refused refused = context.identify(call, Role::kUser, &caller);
  if (!refused) refused = check_name("request_id", id);
  if (refused) return refused;
  const bool others = caller.role == Role::kAdmin && context.options.operators;
  if (abort_any(context.core.registry, caller, others, id)) return {};
  return refuse(EndReason::kNotFound, fmt::format("no request \"{}\" is running", cut(id)));
}

// Runs on the text executor, as texts may be long.
using TextWork = Refused (*)(const TextCall& call);
grpc::ServerUnaryReactor* answer_later(ServiceContext& context, grpc::CallbackServerContext* call,
                                       const grpc::ByteBuffer* request, grpc::ByteBuffer* response,
                                       TextWork work) {
  auto* unary = new UnaryCall(context, call);
  Identity caller;
  if (Refused refused = context.admit(call, &caller)) {
    unary->finish(std::move(refused));
    return unary;
  }
  const Clock::time_point arrival = Clock::now();
  unary->try_answer_on_text(static_cast<int64_t>(request->Length()), caller, [=, &context] {
    const Clock::time_point began = Clock::now();
    const Refused refused =
        work({context.core, caller, *request, unary->limits(), unary->answer_share(), response});
    context.core.metrics.observe_text(seconds_between(arrival, began),
                                      seconds_between(began, Clock::now()));
    return refused;
  });
  return unary;
}

class InferenceService final : public RawService {
 public:
  static constexpr const char* kName = "recurve.v1.Inference";

  explicit InferenceService(ServiceContext& context) : RawService(context, kName) {
    server_stream("Generate", [&context](Call* call, const Bytes* request) {
      return generate(context, call, request);
    });
    server_stream("Embed", [&context](Call* call, const Bytes* request) {
      return embed(context, call, request);
    });
    bidi_stream("Score", [&context](Call* call) { return score(context, call); });
    unary("Tokenize", [&context](Call* call, const Bytes* request, Bytes* response) {
      return answer_later(context, call, request, response, tokenize);
    });
    unary("Detokenize", [&context](Call* call, const Bytes* request, Bytes* response) {
      return answer_later(context, call, request, response, detokenize);
    });
    // In every state: requests that run while the server drains can be aborted too.
    immediate<v1::AbortRequest, v1::AbortResponse>(
        "Abort", [&context](Call* call, const v1::AbortRequest& request, v1::AbortResponse*) {
          return abort_request(context, call, request.request_id());
        });
  }
};

}  // namespace

RpcService inference_service() { return rpc_service<InferenceService>(); }

}  // namespace recurve
