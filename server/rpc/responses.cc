#include "server/rpc/conversions.h"
#include "server/rpc/messages.h"

namespace recurve {

namespace {

v1::SessionTier tier_of(Tier tier) {
  switch (tier) {
    case Tier::kEmpty:
      return v1::SESSION_TIER_EMPTY;
    case Tier::kSlot:
      return v1::SESSION_TIER_SLOT;
    case Tier::kHost:
      return v1::SESSION_TIER_HOST;
    case Tier::kDisk:
      return v1::SESSION_TIER_DISK;
  }
  return v1::SESSION_TIER_UNSPECIFIED;
}

}  // namespace

static_assert(static_cast<int>(EndReason::kLength) == v1::FINISH_REASON_LENGTH &&
              static_cast<int>(EndReason::kEos) == v1::FINISH_REASON_EOS &&
              static_cast<int>(EndReason::kStopId) == v1::FINISH_REASON_STOP_ID &&
              static_cast<int>(EndReason::kStopString) == v1::FINISH_REASON_STOP_STRING);

void fill(const RequestAccepted& accepted, const std::string& model, v1::PromptInfo* to) {
  to->set_request_id(accepted.request_id);
  to->set_model(model);
  to->set_prompt_tokens(accepted.prompt_tokens);
  to->set_session_position(accepted.session_position);
  to->set_seed(accepted.seed);
}

void fill(const SampledToken& token, const Tokenizer& tokenizer, v1::TokenLogprob* to) {
  const auto set_bytes = [&](int32_t id, auto* out) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    out->set_token(bytes.data(), bytes.size());
  };
  to->set_id(token.id);
  to->set_logprob(token.logprob);
  set_bytes(token.id, to);
  for (const TokenLogprob& candidate : token.top) {
    auto* out = to->add_top();
    out->set_id(candidate.id);
    out->set_logprob(candidate.logprob);
    set_bytes(candidate.id, out);
  }
}

void fill(const AnswerDelta& delta, const Tokenizer& tokenizer, v1::Chunk* to) {
  to->set_choice(delta.choice);
  to->set_text(delta.text);
  to->set_reasoning(delta.reasoning);
  for (const SampledToken& token : delta.tokens) {
    to->add_ids(token.id);
    if (delta.logprobs) fill(token, tokenizer, to->add_logprobs());
  }
  for (const ToolCallPart& part : delta.calls) {
    v1::ToolCallPart& out = *to->add_tool_calls();
    out.set_index(part.index);
    out.set_id(part.id);
    out.set_name(part.name);
    out.set_arguments(part.arguments);
  }
}

void fill(const AnswerEnd& end, v1::GenerateFinal* to) {
  for (const ChoiceEnd& choice : end.choices) {
    v1::GenerateFinal::ChoiceFinal& final = *to->add_choices();
    final.set_reason(static_cast<v1::FinishReason>(choice.reason));
    if (choice.reason == EndReason::kStopString) final.set_stop_string(choice.stop_string);
    if (choice.reason == EndReason::kEos || choice.reason == EndReason::kStopId) {
      final.set_stop_id(choice.stop_id);
    }
    final.set_generated_tokens(choice.generated_tokens);
    final.set_decode_seconds(choice.decode_seconds);
    final.set_tool_calls(choice.tool_calls);
    final.set_reasoning_tokens(choice.reasoning_tokens);
  }
  fill(end.usage, to->mutable_usage());
  if (end.usage.commit) fill(*end.usage.commit, to->mutable_commit());
  to->set_recorded(end.usage.recorded);
}

void fill(const CommitInfo& commit, v1::Commit* to) {
  to->set_owner_epoch(commit.owner_epoch);
  to->set_number(commit.number);
  to->set_position(commit.position);
}

void fill(const StreamEnd& ending, v1::Usage* to) {
  to->set_prompt_tokens(ending.prompt_tokens);
  to->set_generated_tokens(ending.generated_tokens);
  to->set_queue_seconds(ending.queue_seconds);
  to->set_prefill_seconds(ending.prefill_seconds);
  to->set_decode_seconds(ending.decode_seconds);
  to->set_session_position(ending.session_position);
  to->set_prefix_tokens(ending.prefix.tokens);
  to->set_prefix_lost_tokens(ending.prefix.lost);
  to->set_prefix_replayed_tokens(ending.prefix.replayed);
  to->set_prefix_miss(static_cast<v1::PrefixMiss>(ending.prefix.miss));
}

void fill(const SessionInfo& info, v1::Session* session) {
  session->set_name(info.name);
  session->set_model(info.model);
  session->set_parent(info.parent);
  session->set_initial_state(info.binding.initial_state);
  session->set_adapter(info.binding.adapter);
  session->set_position(info.position);
  if (info.pending_token) session->set_pending_token(*info.pending_token);
  session->set_tier(tier_of(info.tier));
  session->set_busy(info.busy);
  session->set_epoch(info.epoch);
  session->set_idle_seconds(info.idle_seconds);
  session->set_ttl_seconds(info.ttl_seconds);
  session->set_state_bytes(info.state_bytes);
  session->set_page_bytes(info.page_bytes);
  session->set_rewind_tokens(info.rewind_tokens);
  session->set_tokens_from(info.tokens_from);
  session->set_host_bytes(info.host_bytes);
  session->set_durability(info.durability == Durability::kRemote  ? v1::DURABILITY_REMOTE
                          : info.durability == Durability::kLocal ? v1::DURABILITY_LOCAL
                                                                  : v1::DURABILITY_NONE);
  session->set_in_doubt(info.in_doubt);
  if (info.commit) fill(*info.commit, session->mutable_commit());
  for (const MarkInfo& mark : info.marks) {
    v1::SessionMark* to = session->add_marks();
    to->set_name(mark.name);
    to->set_position(mark.position);
  }
}

grpc::ByteBuffer one_session(const SessionResult& result) {
  v1::Session session;
  if (!result.sessions.empty()) fill(result.sessions.front(), &session);
  return serialize(session);
}

}  // namespace recurve
