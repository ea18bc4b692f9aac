#include "server/rpc/score_call.h"

#include <utility>

#include "server/rpc/answer.h"
#include "server/rpc/messages.h"
#include "server/rpc/status.h"

namespace recurve {

using grpc::Status;

// On the text executor throughout: pieces may be long, and nobody waits for single tokens.
ScoreCall::ScoreCall(ServiceContext& context, grpc::CallbackServerContext* call)
    : ReactorCall(context, call, context.text) {
  open();
}

Status ScoreCall::begin() {
  StartRead(&incoming_);
  return {};
}

void ScoreCall::OnReadDone(bool ok) {
  read_ = ok ? Read::kPiece : Read::kEnd;
  poke();
}

void ScoreCall::look(bool) {
  if (!submitted()) {
    const Status status = read();
    if (!status.ok()) end(status);
    return;
  }
  const TokenStream::Gathered gathered = streams_[0]->take();
  if (gathered.accepted) send_prompt_info(*gathered.accepted);
  if (!gathered.prompt.empty()) add_scored(gathered.prompt);
  if (gathered.ending) conclude(*gathered.ending);
}

Status ScoreCall::read() {
  const Read read = read_.exchange(Read::kNone);
  if (read == Read::kNone) return {};
  if (read == Read::kEnd) return submit_gathered();
  v1::ScoreRequest piece;
  Status status = parse(incoming_, &piece);
  if (status.ok()) status = add_piece(piece);
  if (status.ok()) StartRead(&incoming_);
  return status;
}

Status ScoreCall::add_piece(const v1::ScoreRequest& piece) {
  if (std::exchange(first_, false)) {
    prompt_.options = piece.options();
  } else if (piece.has_options()) {
    return invalid("options must be in the first message only, got them in a later one");
  }
  if (piece.has_text()) {
    if (!prompt_.ids.empty()) return invalid("pieces must all be text or all be ids, got both");
    if (!prompt_.text) prompt_.text.emplace();
    const auto most = static_cast<size_t>(context_.options.max_prompt_bytes);
    if (prompt_.text->size() + piece.text().size() > most) {
      return invalid("the text must have at most {} bytes, got more", most);
    }
    prompt_.text->append(piece.text());
  } else if (piece.has_ids()) {
    if (prompt_.text) return invalid("pieces must all be text or all be ids, got both");
    const auto& ids = piece.ids().ids();
    const auto most = static_cast<size_t>(context_.options.max_prompt_tokens);
    if (prompt_.ids.size() + static_cast<size_t>(ids.size()) > most) {
      return invalid("the text must have at most {} tokens, got more", most);
    }
    prompt_.ids.insert(prompt_.ids.end(), ids.begin(), ids.end());
  }
  return {};
}

Status ScoreCall::submit_gathered() {
  Order order;
  const Status status = validate(prompt_, context_.rules, &order);
  if (!status.ok()) return status;
  with_tokens_ = prompt_.options.has_top();
  if (prompt_.text) {
    text_bytes_ = static_cast<int64_t>(prompt_.text->size());
  } else {
    for (const int32_t id : prompt_.ids) {
      text_bytes_ += static_cast<int64_t>(context_.rules.tokenizer->token_bytes(id).size());
    }
  }
  prompt_ = {};
  return submit(order);
}

void ScoreCall::send_prompt_info(const Accepted& accepted) {
  v1::ScoreResponse response;
  v1::PromptInfo& info = *response.mutable_prompt();
  info.set_request_id(id_);
  info.set_model(context_.info.model_name);
  info.set_prompt_tokens(accepted.prompt_tokens);
  send(response);
}

void ScoreCall::add_scored(const std::vector<SampledToken>& tokens) {
  v1::ScoreResponse response;
  size_t size = 0;
  for (const SampledToken& token : tokens) {
    ++scored_tokens_;
    sum_logprob_ += static_cast<double>(token.logprob);
    if (!with_tokens_) continue;
    fill(token, *context_.rules.tokenizer, response.mutable_progress()->add_tokens());
    size += size_of(token, true);
    if (size < kMessageBytes) continue;
    send_progress(&response);
    size = 0;
  }
  if (!with_tokens_ || size > 0) send_progress(&response);
}

void ScoreCall::send_progress(v1::ScoreResponse* response) {
  response->mutable_progress()->set_scored_tokens(scored_tokens_);
  response->mutable_progress()->set_sum_logprob(sum_logprob_);
  send(*response);
  response->Clear();
}

void ScoreCall::conclude(const Ending& ending) {
  const Status status = failure_of(ending);
  if (status.ok()) {
    v1::ScoreResponse response;
    v1::ScoreFinal& final = *response.mutable_final();
    final.set_scored_tokens(scored_tokens_);
    final.set_sum_logprob(sum_logprob_);
    final.set_text_bytes(text_bytes_);
    fill(ending, final.mutable_usage());
    send(response);
  }
  end(status, &ending);
}

}  // namespace recurve
