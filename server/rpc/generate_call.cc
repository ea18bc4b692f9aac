#include "server/rpc/generate_call.h"

#include <algorithm>
#include <utility>

#include "server/rpc/messages.h"
#include "server/rpc/status.h"

namespace recurve {

using grpc::Status;

GenerateCall::GenerateCall(ServiceContext& context, grpc::CallbackServerContext* call,
                           const grpc::ByteBuffer* request)
    : ReactorCall(context, call, context.delivery), message_(request) {
  open(static_cast<int64_t>(request->Length()),
       leading_string(*request, v1::GenerateRequest::kRequestIdFieldNumber, kMaxNameLength));
}

Status GenerateCall::begin() {
  v1::GenerateRequest message;
  ParsedRequest parsed;
  Status status = parse(*message_, &message);
  // gRPC would keep it to the end of the call, and it may be long. It is this call's alone.
  const_cast<grpc::ByteBuffer*>(message_)->Clear();
  if (status.ok()) status = validate(message, context_.rules, limits(), &parsed);
  if (!status.ok()) return status;
  acknowledges_ = parsed.request.wait_for_acknowledgement;
  logprobs_ = parsed.request.sampling.logprobs >= 0;
  seed_ = parsed.request.sampling.seed;
  for (size_t c = 0; c < parsed.request.streams.size(); ++c) {
    choices_.push_back({Answer(*context_.rules.tokenizer, parsed)});
  }
  return submit(parsed);
}

void GenerateCall::look(bool busy) {
  for (size_t c = 0; c < choices_.size(); ++c) {
    // The engine accepts all choices before it gives a token to one, but this may look in between.
    if (c > 0 && !accepted_ && !choices_[0].ending) return;
    if (!choices_[c].ending) look_at(c, busy);
  }
  const bool all_ended =
      std::all_of(choices_.begin(), choices_.end(), [](const Choice& c) { return c.ending; });
  if (all_ended) conclude();
}

void GenerateCall::look_at(size_t index, bool busy) {
  Choice& choice = choices_[index];
  TokenStream::Gathered gathered = take(index);
  if (gathered.accepted && !std::exchange(accepted_, true)) send_prompt_info(*gathered.accepted);
  if (index == 0 && !gathered.prompt.empty()) send_prompt_logprobs(gathered.prompt);
  if (!gathered.tokens.empty()) time_tokens(choice, gathered.tokens.size());
  add_tokens(index, gathered);
  if (gathered.ending) {
    choice.answer.finish(&choice.chunk);
    choice.ending = std::move(gathered.ending);
  } else {
    steer(index, !gathered.tokens.empty());
  }
  if (!busy || choice.ending) send_chunk(index);
}

void GenerateCall::send_prompt_info(const Accepted& accepted) {
  v1::GenerateResponse response;
  v1::PromptInfo& info = *response.mutable_prompt();
  info.set_request_id(id_);
  info.set_model(context_.info.model_name);
  info.set_prompt_tokens(accepted.prompt_tokens);
  info.set_session_position(accepted.session_position);
  info.set_seed(seed_);
  send(response);
}

void GenerateCall::send_prompt_logprobs(const std::vector<SampledToken>& tokens) {
  v1::GenerateResponse response;
  size_t size = 0;
  for (const SampledToken& token : tokens) {
    fill(token, *context_.rules.tokenizer, response.mutable_prompt_logprobs()->add_tokens());
    size += size_of(token, true);
    if (size < kMessageBytes && &token != &tokens.back()) continue;
    send(response);
    response.Clear();
    size = 0;
  }
}

void GenerateCall::add_tokens(size_t index, const TokenStream::Gathered& gathered) {
  const bool ends = gathered.ending && (gathered.ending->why == Finish::kEos ||
                                        gathered.ending->why == Finish::kStopId);
  Choice& choice = choices_[index];
  for (const SampledToken& token : gathered.tokens) {
    choice.answer.add(token, ends && &token == &gathered.tokens.back(), &choice.chunk);
    choice.token_bytes += size_of(token, logprobs_);
    if (choice.token_bytes + choice.chunk.text().size() >= kMessageBytes) send_chunk(index);
  }
}

void GenerateCall::send_chunk(size_t index) {
  Choice& choice = choices_[index];
  if (choice.chunk.ids_size() == 0 && choice.chunk.text().empty()) return;
  choice.chunk.set_choice(static_cast<int32_t>(index));
  // Lent, not given: so the chunk keeps its memory.
  response_.unsafe_arena_set_allocated_chunk(&choice.chunk);
  send(response_);
  response_.unsafe_arena_release_chunk();
  choice.chunk.Clear();
  choice.token_bytes = 0;
}

// Tells the engine what the text means for the tokens to come.
void GenerateCall::steer(size_t index, bool new_tokens) {
  Choice& choice = choices_[index];
  if (choice.answer.stopped()) {
    if (std::exchange(choice.told_to_stop, true)) return;
    streams_[index]->stop_after(choice.answer.tokens());
    context_.queue.wake();
  } else if (acknowledges_ && new_tokens) {
    streams_[index]->acknowledge(choice.answer.tokens());
    context_.queue.wake();
  }
}

// Tokens that came together share the time since those before.
void GenerateCall::time_tokens(Choice& choice, size_t tokens) {
  const Clock::time_point now = Clock::now();
  if (!choice.last_token) {
    const bool first = std::none_of(choices_.begin(), choices_.end(),
                                    [](const Choice& c) { return c.last_token.has_value(); });
    if (first) {
      context_.metrics.observe_ttft(std::chrono::duration<double>(now - arrival_).count());
    }
  } else {
    const std::chrono::duration<double> gap = now - *choice.last_token;
    for (size_t i = 0; i < tokens; ++i) {
      context_.metrics.observe_inter_token(gap.count() / static_cast<double>(tokens));
    }
  }
  choice.last_token = now;
}

void GenerateCall::conclude() {
  for (const Choice& choice : choices_) {
    if (choice.answer.stopped()) continue;
    const Status status = failure_of(*choice.ending);
    if (!status.ok()) return end(status, &*choice.ending);
  }
  Ending total;
  send_final(&total);
  end(Status::OK, &total);
}

void GenerateCall::send_final(Ending* total) {
  *total = *choices_[0].ending;
  total->generated_tokens = 0;
  v1::GenerateResponse response;
  for (const Choice& choice : choices_) {
    const Ending& ending = *choice.ending;
    v1::GenerateFinal::ChoiceFinal& final = *response.mutable_final()->add_choices();
    if (choice.answer.stopped()) {
      final.set_reason(v1::FINISH_REASON_STOP_STRING);
      final.set_stop_string(choice.answer.stop_string());
    } else if (ending.why == Finish::kLength) {
      final.set_reason(v1::FINISH_REASON_LENGTH);
    } else {
      final.set_reason(ending.why == Finish::kEos ? v1::FINISH_REASON_EOS
                                                  : v1::FINISH_REASON_STOP_ID);
      final.set_stop_id(ending.stop_id);
    }
    final.set_generated_tokens(choice.answer.tokens());
    final.set_decode_seconds(ending.decode_seconds);
    total->generated_tokens += choice.answer.tokens();
    total->decode_seconds = std::max(total->decode_seconds, ending.decode_seconds);
  }
  if (choices_[0].answer.stopped()) total->why = Finish::kStopString;
  fill(*total, response.mutable_final()->mutable_usage());
  send(response);
}

}  // namespace recurve
