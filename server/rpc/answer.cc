#include "server/rpc/answer.h"

namespace recurve {

Answer::Answer(const Tokenizer& tokenizer, const ParsedRequest& parsed)
    : tokenizer_(tokenizer),
      include_stop_(parsed.include_stop),
      logprobs_(parsed.request.sampling.logprobs >= 0),
      decoder_(tokenizer, parsed.answer_position) {
  if (!parsed.stop_strings.empty()) matcher_.emplace(parsed.stop_strings);
}

void Answer::add(const SampledToken& token, bool ends, v1::Chunk* chunk) {
  if (stopped()) return;
  ++tokens_;
  chunk->add_ids(token.id);
  if (logprobs_) fill(token, tokenizer_, chunk->add_logprobs());
  if (!ends || include_stop_) add_text(decoder_.push(token.id), chunk);
}

void Answer::finish(v1::Chunk* chunk) {
  add_text(decoder_.finish(), chunk);
  if (matcher_) chunk->mutable_text()->append(matcher_->finish());
}

void Answer::add_text(const std::string& text, v1::Chunk* chunk) {
  if (!matcher_) {
    chunk->mutable_text()->append(text);
    return;
  }
  if (stopped()) return;
  chunk->mutable_text()->append(matcher_->feed(text));
  if (stopped() && include_stop_) chunk->mutable_text()->append(matcher_->matched_text());
}

void fill(const SampledToken& token, const Tokenizer& tokenizer, v1::TokenLogprob* out) {
  const auto set_bytes = [&](int32_t id, auto* to) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    to->set_token(bytes.data(), bytes.size());
  };
  out->set_id(token.id);
  out->set_logprob(token.logprob);
  set_bytes(token.id, out);
  for (const TokenLogprob& candidate : token.top) {
    auto* to = out->add_top();
    to->set_id(candidate.id);
    to->set_logprob(candidate.logprob);
    set_bytes(candidate.id, to);
  }
}

void fill(const Ending& ending, v1::Usage* usage) {
  usage->set_prompt_tokens(ending.prompt_tokens);
  usage->set_generated_tokens(ending.generated_tokens);
  usage->set_queue_seconds(ending.queue_seconds);
  usage->set_prefill_seconds(ending.prefill_seconds);
  usage->set_decode_seconds(ending.decode_seconds);
  usage->set_session_position(ending.session_position);
}

size_t size_of(const SampledToken& token, bool logprobs) {
  constexpr size_t kPlain = 16, kWithLogprob = 40;
  return kPlain + (logprobs ? kWithLogprob * (1 + token.top.size()) : 0);
}

}  // namespace recurve
