#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <utility>

#include "recurve/v1/inference.pb.h"
#include "server/rpc/calls.h"
#include "server/rpc/conversions.h"
#include "server/rpc/messages.h"
#include "server/rpc/stream_call.h"
#include "server/serving/embedding.h"
#include "server/serving/generation.h"
#include "server/serving/scoring.h"

namespace recurve {
namespace {

// One Generate call. Deletes itself.
class GenerateCall final
    : public StreamCall<grpc::ServerWriteReactor<grpc::ByteBuffer>, AnswerSink> {
 public:
  GenerateCall(ServiceContext& context, grpc::CallbackServerContext* call,
               const grpc::ByteBuffer* request)
      : StreamCall(context, call, "recurve.v1.Inference/Generate"), message_(request) {
    serve(new Generation(context.core, *this), static_cast<int64_t>(request->Length()),
          leading_string(*request, v1::GenerateRequest::kRequestIdFieldNumber, kMaxNameLength));
  }

 private:
  Refused read(TextRequest* asked) override {
    v1::GenerateRequest message;
    Refused refused = parse(*message_, &message);
    // Frees the message, which may be large and which gRPC would hold until the call ends. No other
    // code uses it.
    const_cast<grpc::ByteBuffer*>(message_)->Clear();
    if (!refused) refused = check_known(message);
    FoundModel model;
    if (!refused) {
      refused = context_.core.find({message.model(), caller(), message.session()}, &model);
    }
    if (!refused) *asked = to_request(std::move(message));
    asked->model = std::move(model);
    return refused;
  }

  void send(AnswerEvent event) override {
    std::visit([this](const auto& of) { write(of); }, event);
  }

  void write(const RequestAccepted& accepted) {
    v1::GenerateResponse response;
    fill(accepted, served().model().info.model_name, response.mutable_prompt());
    outbox_.push(response);
  }

  void write(const PromptScored& scored) {
    v1::GenerateResponse response;
    for (const SampledToken& token : scored.tokens) {
      fill(token, *served().model().text.tokenizer,
           response.mutable_prompt_logprobs()->add_tokens());
    }
    outbox_.push(response);
  }

  void write(const PromptProgress& progress) {
    v1::GenerateResponse response;
    response.mutable_progress()->set_absorbed_tokens(progress.absorbed_tokens);
    outbox_.push(response);
  }

  void write(const AnswerDelta& delta) {
    fill(delta, *served().model().text.tokenizer, &chunk_);
    v1::GenerateResponse response;
    // Only borrowed: chunk_ reuses its memory.
    response.unsafe_arena_set_allocated_chunk(&chunk_);
    outbox_.push(response);
    response.unsafe_arena_release_chunk();
    chunk_.Clear();
  }

  void write(const AnswerEnd& end) {
    v1::GenerateResponse response;
    fill(end, response.mutable_final());
    outbox_.push(response);
  }

  const grpc::ByteBuffer* const message_;  // valid until OnDone()
  v1::Chunk chunk_;                        // reused; empty between two messages
};

// One Embed call. Deletes itself.
class EmbedCall final : public StreamCall<grpc::ServerWriteReactor<grpc::ByteBuffer>, EmbedSink> {
 public:
  EmbedCall(ServiceContext& context, grpc::CallbackServerContext* call,
            const grpc::ByteBuffer* request)
      : StreamCall(context, call, "recurve.v1.Inference/Embed"), message_(request) {
    serve(new Embedding(context.core, *this), static_cast<int64_t>(request->Length()),
          leading_string(*request, v1::EmbedRequest::kRequestIdFieldNumber, kMaxNameLength));
  }

 private:
  Refused read(EmbedRequest* asked) override {
    v1::EmbedRequest message;
    Refused refused = parse(*message_, &message);
    const_cast<grpc::ByteBuffer*>(message_)->Clear();  // as in GenerateCall
    if (!refused) refused = check_known(message);
    FoundModel model;
    if (!refused) refused = context_.core.find({message.model(), caller()}, &model);
    if (!refused) *asked = to_embed(std::move(message));
    asked->model = std::move(model);
    return refused;
  }

  void send(EmbedEvent event) override {
    v1::EmbedResponse response;
    if (const auto* accepted = std::get_if<RequestAccepted>(&event)) {
      fill(*accepted, served().model().info.model_name, response.mutable_prompt());
    } else if (const auto* one = std::get_if<Embedded>(&event)) {
      v1::Embedding& to = *response.mutable_embedding();
      to.set_input(static_cast<int32_t>(one->input));
      to.mutable_values()->Assign(one->values.begin(), one->values.end());
      to.set_prompt_tokens(one->prompt_tokens);
    } else {
      fill(std::get<EmbedEnd>(event).usage, response.mutable_final()->mutable_usage());
    }
    outbox_.push(response);
  }

  const grpc::ByteBuffer* const message_;  // valid until OnDone()
};

// One Score call. Deletes itself.
class ScoreCall final
    : public StreamCall<grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>, ScoreSink> {
 public:
  ScoreCall(ServiceContext& context, grpc::CallbackServerContext* call)
      : StreamCall(context, call, "recurve.v1.Inference/Score") {
    serve(new Scoring(context.core, *this));
  }

  void OnReadDone(bool ok) override {
    arrived_ = ok ? Arrival::kPiece : Arrival::kEnd;
    served().poke();
  }

 private:
  void ask() override { StartRead(&incoming_); }
  Arrival arrived() override { return arrived_.exchange(Arrival::kNothing); }
  int64_t piece_bytes() const override { return static_cast<int64_t>(incoming_.Length()); }

  Refused read(ScorePiece* piece) override {
    v1::ScoreRequest message;
    Refused refused = parse(incoming_, &message);
    incoming_.Clear();
    if (refused) return refused;
    const std::string model = message.options().model();
    *piece = to_piece(std::move(message));
    if (begun_) return {};
    begun_ = true;
    if (!piece->options) piece->options.emplace();
    return context_.core.find({model, caller()}, &piece->options->model);
  }

  void send(ScoreEvent event) override {
    std::visit([this](const auto& of) { write(of); }, event);
  }

  void write(const RequestAccepted& accepted) {
    v1::ScoreResponse response;
    fill(accepted, served().model().info.model_name, response.mutable_prompt());
    outbox_.push(response);
  }

  void write(const ScoreProgress& progress) {
    v1::ScoreResponse response;
    v1::ScoreProgress& to = *response.mutable_progress();
    to.set_scored_tokens(progress.scored_tokens);
    to.set_sum_logprob(progress.sum_logprob);
    for (const SampledToken& token : progress.tokens) {
      fill(token, *served().model().text.tokenizer, to.add_tokens());
    }
    outbox_.push(response);
  }

  void write(const ScoreEnd& end) {
    v1::ScoreResponse response;
    v1::ScoreFinal& to = *response.mutable_final();
    to.set_scored_tokens(end.scored_tokens);
    to.set_sum_logprob(end.sum_logprob);
    to.set_text_bytes(end.text_bytes);
    fill(end.usage, to.mutable_usage());
    outbox_.push(response);
  }

  grpc::ByteBuffer incoming_;
  bool begun_ = false;
  std::atomic<Arrival> arrived_{Arrival::kNothing};
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* generate(ServiceContext& context,
                                                     grpc::CallbackServerContext* call,
                                                     const grpc::ByteBuffer* request) {
  return new GenerateCall(context, call, request);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* embed(ServiceContext& context,
                                                  grpc::CallbackServerContext* call,
                                                  const grpc::ByteBuffer* request) {
  return new EmbedCall(context, call, request);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* score(
    ServiceContext& context, grpc::CallbackServerContext* call) {
  return new ScoreCall(context, call);
}

}  // namespace recurve
