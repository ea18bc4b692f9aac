#include "server/rpc/generate_call.h"

#include <utility>

#include "server/rpc/conversions.h"
#include "server/rpc/messages.h"

namespace recurve {

GenerateCall::GenerateCall(ServiceContext& context, grpc::CallbackServerContext* call,
                           const grpc::ByteBuffer* request)
    : StreamCall(context, call, "recurve.v1.Inference/Generate"), message_(request) {
  serve(new Generation(context.core, *this), static_cast<int64_t>(request->Length()),
        leading_string(*request, v1::GenerateRequest::kRequestIdFieldNumber, kMaxNameLength));
}

Refused GenerateCall::read(TextRequest* asked) {
  v1::GenerateRequest message;
  Refused refused = parse(*message_, &message);
  // Frees the message, which may be large and which gRPC would hold until the call ends. No other
  // code uses it.
  const_cast<grpc::ByteBuffer*>(message_)->Clear();
  if (!refused) refused = check_known(message);
  if (!refused) *asked = to_request(std::move(message));
  return refused;
}

void GenerateCall::send(AnswerEvent event) {
  std::visit([this](const auto& of) { write(of); }, event);
}

void GenerateCall::write(const RequestAccepted& accepted) {
  v1::GenerateResponse response;
  fill(accepted, served().model().info.model_name, response.mutable_prompt());
  outbox_.push(response);
}

void GenerateCall::write(const PromptScored& scored) {
  v1::GenerateResponse response;
  for (const SampledToken& token : scored.tokens) {
    fill(token, *served().model().text.tokenizer, response.mutable_prompt_logprobs()->add_tokens());
  }
  outbox_.push(response);
}

void GenerateCall::write(const AnswerDelta& delta) {
  fill(delta, *served().model().text.tokenizer, &chunk_);
  v1::GenerateResponse response;
  // Only borrowed: chunk_ reuses its memory.
  response.unsafe_arena_set_allocated_chunk(&chunk_);
  outbox_.push(response);
  response.unsafe_arena_release_chunk();
  chunk_.Clear();
}

void GenerateCall::write(const AnswerEnd& end) {
  v1::GenerateResponse response;
  fill(end, response.mutable_final());
  outbox_.push(response);
}

}  // namespace recurve
