#include "server/rpc/score_call.h"

#include <chrono>
#include <utility>

#include "server/rpc/answer.h"
#include "server/rpc/messages.h"
#include "server/rpc/status.h"

namespace recurve {

using grpc::Status;

namespace {
// Ids given to the engine or waiting for it, and not seen scored: some chunks ahead, so that it is
// never idle while the text comes fast enough.
constexpr int64_t kAhead = 4096;
}  // namespace

// On the text executor throughout: pieces may be long, and nobody waits for single tokens.
ScoreCall::ScoreCall(ServiceContext& context, grpc::CallbackServerContext* call)
    : ReactorCall(context, call, context.text),
      input_(context.rules, static_cast<size_t>(context.options.max_unbroken_bytes), &unwanted_) {
  open();
}

Status ScoreCall::begin() { return {}; }

void ScoreCall::OnReadDone(bool ok) {
  read_ = ok ? Read::kPiece : Read::kEnd;
  poke();
}

void ScoreCall::look(bool) {
  if (submitted()) take_scored();
  if (concluded_ || refusal_ || unwanted()) return;
  const Status status = read_on();
  if (!status.ok()) refuse(status);
}

Status ScoreCall::read_on() {
  Status status = take_piece();
  const int64_t room = kAhead - (given_tokens_ - scored_tokens_);
  if (!status.ok() || room <= 0) return status;
  status = input_.read(static_cast<size_t>(room));
  if (!status.ok()) return status;
  if (!submitted()) {
    const bool enough = input_.complete() || static_cast<int64_t>(input_.ids()) >= kAhead;
    if (enough) status = start_scoring();
  } else {
    give_more();
  }
  if (status.ok() && input_.hungry() && !std::exchange(reading_, true)) StartRead(&incoming_);
  return status;
}

Status ScoreCall::take_piece() {
  const Read read = read_.exchange(Read::kNone);
  if (read == Read::kNone) return {};
  reading_ = false;
  if (read == Read::kEnd) {
    input_.end();
    return {};
  }
  v1::ScoreRequest piece;
  Status status = hold(static_cast<int64_t>(incoming_.Length()));
  if (status.ok()) status = parse(incoming_, &piece);
  incoming_.Clear();
  return status.ok() ? input_.add(std::move(piece)) : status;
}

// Only now, with some text to go on with: a slot is not held for a client that has just begun.
Status ScoreCall::start_scoring() {
  ParsedRequest parsed;
  Status status = validate(input_.options(), &parsed);
  if (!status.ok()) return status;
  Request& request = parsed.request;
  std::vector<int32_t>& ids = request.prompt.ids = input_.take_ids();
  if (ids.empty()) return invalid("the text must have at least one token, got none");
  const auto bos = bos_before(ids, input_.options(), input_.is_text(), context_.rules);
  if (bos) ids.insert(ids.begin(), *bos);
  given_tokens_ = static_cast<int64_t>(ids.size());
  if (!input_.complete()) {
    using std::chrono::duration_cast;
    const std::chrono::duration<double> patience(context_.options.stall_seconds);
    feed_ = std::make_shared<PromptFeed>(duration_cast<PromptFeed::Duration>(patience));
    request.more_prompt = feed_;
  }
  return submit(parsed);
}

void ScoreCall::give_more() {
  if (feed_ == nullptr) return;
  const std::vector<int32_t> ids = input_.take_ids();
  if (ids.empty() && !input_.complete()) return;
  given_tokens_ += static_cast<int64_t>(ids.size());
  feed_->push(ids);
  if (input_.complete()) std::exchange(feed_, nullptr)->close();
  context_.queue.wake();
}

// What the engine has begun it ends first.
void ScoreCall::refuse(const Status& status) {
  if (!submitted()) return end(status);
  refusal_ = status;
  streams_[0]->cancel();
  context_.queue.wake();
}

void ScoreCall::take_scored() {
  const TokenStream::Gathered gathered = take(0);
  if (gathered.accepted) send_prompt_info(*gathered.accepted);
  if (!gathered.prompt.empty()) add_scored(gathered.prompt);
  if (gathered.ending) conclude(*gathered.ending);
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
  const bool with_tokens = input_.options().has_top();
  v1::ScoreResponse response;
  size_t size = 0;
  for (const SampledToken& token : tokens) {
    ++scored_tokens_;
    sum_logprob_ += static_cast<double>(token.logprob);
    if (!with_tokens) continue;
    fill(token, *context_.rules.tokenizer, response.mutable_progress()->add_tokens());
    size += size_of(token, true);
    if (size < kMessageBytes) continue;
    send_progress(&response);
    size = 0;
  }
  if (!with_tokens || size > 0) send_progress(&response);
}

void ScoreCall::send_progress(v1::ScoreResponse* response) {
  response->mutable_progress()->set_scored_tokens(scored_tokens_);
  response->mutable_progress()->set_sum_logprob(sum_logprob_);
  send(*response);
  response->Clear();
}

void ScoreCall::conclude(const Ending& ending) {
  concluded_ = true;
  const Status status = refusal_ ? *refusal_ : failure_of(ending);
  if (status.ok()) {
    v1::ScoreResponse response;
    v1::ScoreFinal& final = *response.mutable_final();
    final.set_scored_tokens(scored_tokens_);
    final.set_sum_logprob(sum_logprob_);
    final.set_text_bytes(input_.bytes());
    fill(ending, final.mutable_usage());
    send(response);
  }
  end(status, &ending);
}

}  // namespace recurve
