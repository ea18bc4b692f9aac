#include "server/rpc/score_call.h"

#include <utility>

#include "server/rpc/conversions.h"
#include "server/rpc/messages.h"

namespace recurve {

ScoreCall::ScoreCall(ServiceContext& context, grpc::CallbackServerContext* call)
    : StreamCall(context, call, "recurve.v1.Inference/Score") {
  serve(new Scoring(context.core, *this));
}

void ScoreCall::OnReadDone(bool ok) {
  arrived_ = ok ? Arrival::kPiece : Arrival::kEnd;
  served().poke();
}

Refused ScoreCall::read(ScorePiece* piece) {
  v1::ScoreRequest message;
  const Refused refused = parse(incoming_, &message);
  incoming_.Clear();
  if (!refused) *piece = to_piece(std::move(message));
  return refused;
}

void ScoreCall::send(ScoreEvent event) {
  std::visit([this](const auto& of) { write(of); }, event);
}

void ScoreCall::write(const RequestAccepted& accepted) {
  v1::ScoreResponse response;
  fill(accepted, served().model().info.model_name, response.mutable_prompt());
  outbox_.push(response);
}

void ScoreCall::write(const ScoreProgress& progress) {
  v1::ScoreResponse response;
  v1::ScoreProgress& to = *response.mutable_progress();
  to.set_scored_tokens(progress.scored_tokens);
  to.set_sum_logprob(progress.sum_logprob);
  for (const SampledToken& token : progress.tokens) {
    fill(token, *served().model().text.tokenizer, to.add_tokens());
  }
  outbox_.push(response);
}

void ScoreCall::write(const ScoreEnd& end) {
  v1::ScoreResponse response;
  v1::ScoreFinal& to = *response.mutable_final();
  to.set_scored_tokens(end.scored_tokens);
  to.set_sum_logprob(end.sum_logprob);
  to.set_text_bytes(end.text_bytes);
  fill(end.usage, to.mutable_usage());
  outbox_.push(response);
}

}  // namespace recurve
