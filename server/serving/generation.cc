#include "server/serving/generation.h"

#include <algorithm>
#include <utility>

namespace recurve {

Refused Generation::begin() {
  ParsedRequest& parsed = parsed_.emplace();
  if (const auto ready = sink_.take_parsed()) {
    parsed = std::move(*ready);
    if (Refused refused = choose(parsed.model)) return refused;
  } else {
    TextRequest asked;
    Refused refused = sink_.read(&asked);
    asked.caller = caller_;
    if (!refused) refused = choose(asked.model.model);
    if (!refused) refused = validate(std::move(asked), model_->text, limits(), &parsed);
    if (refused) return refused;
  }
  acknowledges_ = parsed.request.wait_for_acknowledgement;
  logprobs_ = parsed.request.sampling.logprobs >= 0;
  seed_ = parsed.request.sampling.seed;
  const Answer first(*model_->text.tokenizer, parsed);  // copies share the stop strings
  for (size_t c = 0; c < parsed.request.streams.size(); ++c) choices_.push_back({first});
  return parsed.constraint ? compile() : begin_turn(parsed);
}

// A request waits for its constraint before it enters the queue, and holds nothing.
Refused Generation::compile() {
  auto outcome = model_->constraints->compile(
      *parsed_->constraint, caller_.group(), [this] { poke(); }, &waiter_);
  return outcome ? compiled(*std::move(outcome)) : Refused();
}

Refused Generation::compiled(ConstraintCompiler::Outcome outcome) {
  ParsedRequest& parsed = *parsed_;
  if (outcome.full) {
    return refuse(EndReason::kExhausted,
                  "too many constraints wait to be compiled: try again later");
  }
  if (outcome.constraint == nullptr) return invalid(parsed.constraint_field, "{}", outcome.refusal);
  parsed.request.sampling.constraint =
      parsed.reasoning ? after_reasoning(std::move(outcome.constraint), *parsed.reasoning)
                       : std::move(outcome.constraint);
  return begin_turn(parsed);
}

// A turn of a shared session waits until the engine has the session's state.
Refused Generation::begin_turn(ParsedRequest& parsed) {
  const Request& request = parsed.request;
  SharedSessions* const shared = core_.shared_sessions();
  const bool is_named = !request.session.empty() && !request.session.starts_with(kReserved);
  if (shared != nullptr && is_named && shared->is_of(*model_)) {
    turn_ = std::make_unique<SharedTurn>(*shared, caller_, request, [this] { poke(); });
    return {};
  }
  if (request.durability == Durability::kRemote) return needs_store();
  ParsedRequest ready = std::move(parsed);
  parsed_.reset();
  return submit(ready);
}

// Nothing: it has not begun yet.
void Generation::poll_turn() {
  auto begun = turn_->begun();
  if (!begun) return;
  if (Refused refused = start_turn(*std::move(begun))) end(std::move(refused));
}

Refused Generation::start_turn(SharedTurn::Begun begun) {
  ParsedRequest parsed = *std::move(parsed_);
  parsed_.reset();
  if (begun.refused) return std::move(begun.refused);
  if (begun.recorded) {
    turn_.reset();
    const std::shared_ptr<TokenStream> stream = parsed.request.streams.front();
    if (Refused refused = prepare(parsed)) return refused;
    repeat(*begun.recorded, begun.commit, *stream);
    return {};
  }
  if (begun.shared) {
    parsed.request.durability.reset();
    parsed.request.expected_epoch.reset();
  } else {
    turn_.reset();
  }
  Refused refused = submit(parsed);
  if (refused && turn_ != nullptr) turn_->leave_unchanged();
  return refused;
}

void Generation::poll(bool busy) {
  if (parsed_ && turn_ != nullptr) return poll_turn();
  if (parsed_) {
    auto outcome = waiter_.outcome();
    if (!outcome) return;
    waiter_.forget();
    if (Refused refused = compiled(*std::move(outcome))) end(std::move(refused));
    return;
  }
  for (size_t c = 0; c < choices_.size(); ++c) {
    // The engine accepts all choices before one gets a token; this may run in between.
    if (c > 0 && !accepted_ && !choices_[0].end) return;
    if (!choices_[c].end) poll_choice(c, busy);
  }
  const bool all_ended =
      std::all_of(choices_.begin(), choices_.end(), [](const Choice& c) { return c.end; });
  if (all_ended) conclude();
}

void Generation::poll_choice(size_t index, bool busy) {
  Choice& choice = choices_[index];
  TokenStream::Gathered gathered = take(index);
  if (gathered.accepted && !std::exchange(accepted_, true)) send_accepted(*gathered.accepted);
  if (index == 0 && !gathered.prompt.empty()) send_scored(std::move(gathered.prompt));
  if (index == 0 && gathered.absorbed) sink_.send(PromptProgress{*gathered.absorbed});
  const bool new_tokens = !gathered.tokens.empty();
  if (new_tokens) time_tokens(choice, gathered.tokens.size());
  add_tokens(index, gathered);
  if (gathered.ending) {
    choice.answer.finish(&choice.delta);
    choice.end = std::move(gathered.ending);
  } else {
    steer(index, new_tokens);
  }
  if (!busy || choice.end) send_delta(index);
}

void Generation::send_accepted(const Accepted& accepted) {
  if (accepted.continues_text) {
    for (Choice& choice : choices_) choice.answer.continue_text();
  }
  answer_.prompt_tokens = accepted.prompt_tokens;
  answer_.before = accepted.session_position;
  answer_.continues_text = accepted.continues_text;
  sink_.send(RequestAccepted{.request_id = id_,
                             .prompt_tokens = accepted.prompt_tokens,
                             .session_position = accepted.session_position,
                             .seed = accepted.seed.value_or(seed_)});
}

void Generation::send_scored(std::vector<SampledToken> tokens) {
  PromptScored scored;
  size_t size = 0;
  for (SampledToken& token : tokens) {
    size += size_of(token, true);
    scored.tokens.push_back(std::move(token));
    if (size < kEventBytes && &token != &tokens.back()) continue;
    sink_.send(std::exchange(scored, {}));
    size = 0;
  }
}

void Generation::add_tokens(size_t index, TokenStream::Gathered& gathered) {
  const bool ends = gathered.ending && (gathered.ending->reason == EndReason::kEos ||
                                        gathered.ending->reason == EndReason::kStopId);
  Choice& choice = choices_[index];
  for (SampledToken& token : gathered.tokens) {
    choice.token_bytes += size_of(token, logprobs_);
    if (turn_ != nullptr) answer_.ids.push_back(token.id);
    choice.answer.add(std::move(token), ends && &token == &gathered.tokens.back(), &choice.delta);
    if (choice.token_bytes + choice.delta.text.size() + choice.delta.reasoning.size() >=
        kEventBytes)
      send_delta(index);
  }
}

void Generation::send_delta(size_t index) {
  Choice& choice = choices_[index];
  if (choice.delta.empty()) return;
  choice.delta.choice = static_cast<int32_t>(index);
  choice.delta.logprobs = logprobs_;
  sink_.send(std::exchange(choice.delta, {}));
  choice.token_bytes = 0;
}

// Tells the engine to stop, or which tokens have been checked for a stop string.
void Generation::steer(size_t index, bool new_tokens) {
  Choice& choice = choices_[index];
  if (choice.answer.stopped()) {
    if (std::exchange(choice.stop_sent, true)) return;
    streams_[index]->stop_after(choice.answer.tokens());
    model_->queue.wake();
  } else if (acknowledges_ && new_tokens) {
    streams_[index]->acknowledge(choice.answer.tokens());
    model_->queue.wake();
  }
}

// Tokens that arrive together share the time since the previous ones.
void Generation::time_tokens(Choice& choice, size_t tokens) {
  const Clock::time_point now = Clock::now();
  if (!choice.last_token) {
    const bool first = std::none_of(choices_.begin(), choices_.end(),
                                    [](const Choice& c) { return c.last_token.has_value(); });
    if (first) model_->metrics->observe_ttft(seconds_between(arrival_, now));
  } else {
    const double gap = seconds_between(*choice.last_token, now);
    for (size_t i = 0; i < tokens; ++i) {
      model_->metrics->observe_inter_token(gap / static_cast<double>(tokens));
    }
  }
  choice.last_token = now;
}

void Generation::conclude() {
  if (turn_ != nullptr && !end_turn()) return;
  for (const Choice& choice : choices_) {
    if (choice.answer.stopped()) continue;
    if (auto refused = failure_of(*choice.end)) return end(refused, &*choice.end);
  }
  AnswerEnd all = end_of_all();
  const StreamEnd usage = all.usage;
  sink_.send(std::move(all));
  end({}, &usage);
}

// The end of an answer on a shared session waits for the commit. False: that is to come, or the
// call has ended because it has failed.
bool Generation::end_turn() {
  StreamEnd& ending = *choices_[0].end;
  if (!is_answer(ending.reason)) {
    if (is_refusal(ending.reason)) turn_->leave_unchanged();
    turn_.reset();
    if (!choices_[0].answer.stopped()) return true;
    end(failure_of(ending), &ending);  // the session is not where the answer ends
    return false;
  }
  if (!std::exchange(committing_, true)) {
    answer_.reason = ending.reason;
    answer_.stop_id = ending.stop_id;
    answer_.position = ending.session_position;
    answer_.seed = seed_;
    turn_->commit(std::move(answer_));
    return false;
  }
  auto committed = turn_->committed();
  if (!committed) return false;
  if (committed->refused) {
    end(std::move(committed->refused), &ending);
    return false;
  }
  ending.commit = committed->commit;
  return true;
}

AnswerEnd Generation::end_of_all() const {
  AnswerEnd all{.choices = {}, .usage = *choices_[0].end};
  StreamEnd& usage = all.usage;
  usage.generated_tokens = 0;
  for (const Choice& choice : choices_) {
    const StreamEnd& ending = *choice.end;
    ChoiceEnd& end = all.choices.emplace_back();
    end.reason = choice.answer.stopped() ? EndReason::kStopString : ending.reason;
    if (choice.answer.stopped()) {
      end.stop_string = choice.answer.stop_string();
    } else {
      end.stop_id = ending.stop_id;
    }
    end.tool_calls = choice.answer.tool_calls();
    end.cut_call = choice.answer.in_call();
    end.reasoning_tokens = choice.answer.reasoning_tokens();
    end.generated_tokens = choice.answer.tokens();
    end.decode_seconds = ending.decode_seconds;
    usage.generated_tokens += choice.answer.tokens();
    usage.decode_seconds = std::max(usage.decode_seconds, ending.decode_seconds);
  }
  if (choices_[0].answer.stopped()) usage.reason = EndReason::kStopString;
  return all;
}

}  // namespace recurve
