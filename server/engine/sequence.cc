#include "server/engine/sequence.h"

#include <algorithm>
#include <span>
#include <utility>

#include "server/session/state_transfer.h"

namespace recurve {

std::optional<int32_t> Sequence::pending() const {
  if (!in_prompt()) return decode.absorbed ? std::nullopt : std::optional(decode.token);
  if (prompt.absorbed > 0) return std::nullopt;
  if (prompt.replaced_pending) return prompt.replaced_pending;
  return prompt.has_pending > 0 ? std::optional(prompt.ids.front()) : std::nullopt;
}

std::optional<int> PromptPhase::to_next(const std::vector<int64_t>& offsets) const {
  const auto at = static_cast<int64_t>(absorbed + launched);
  const auto next = std::upper_bound(offsets.begin(), offsets.end(), at);
  if (next == offsets.end()) return std::nullopt;
  return static_cast<int>(*next - at);
}

void PooledRows::add(std::span<const float> hidden, int rows) {
  const size_t width = hidden.size() / static_cast<size_t>(rows);
  sum.resize(width);
  for (size_t at = 0; at < hidden.size(); at += width) {
    for (size_t d = 0; d < width; ++d) sum[d] += static_cast<double>(hidden[at + d]);
  }
  count += rows;
}

std::vector<float> PooledRows::mean() const {
  std::vector<float> mean;
  mean.reserve(sum.size());
  for (const double one : sum) mean.push_back(static_cast<float>(one / static_cast<double>(count)));
  return mean;
}

const Snapshot* Sequence::begin() const {
  if (session != nullptr) return &session->at;
  const InitialState* const initial = request.binding.initial_state.get();
  return initial != nullptr ? &snapshot_of(*initial) : nullptr;
}

PrefixScope Sequence::prefix_scope() const {
  const InitialState* const initial =
      session == nullptr ? request.binding.initial_state.get() : nullptr;
  return {request.caller, initial, adapter(), initial != nullptr ? begin()->image : StateImage()};
}

int64_t Sequence::final_position() const {
  const int64_t answer = std::max<int64_t>(request.sampling.max_tokens - decode.generated, 0);
  return std::min(planned_position() + unabsorbed() + answer, most_tokens);
}

void Sequence::refill(int chunk, Clock::time_point now) {
  if (request.more_prompt == nullptr) return;
  auto& ids = prompt.ids;
  ids.erase(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(prompt.absorbed));
  prompt.absorbed = 0;
  const size_t before = ids.size();
  const bool more_will_come = request.more_prompt->take(&ids);
  prompt.tokens += static_cast<int64_t>(ids.size() - before);
  // New text ranks after requests that arrived before it, so an endless prompt delays none of them.
  if (ids.size() > before) prompt.rank = rank_of(now, request.priority);
  if (!more_will_come) request.more_prompt.reset();
  if (ready(chunk).tokens > 0 || decode.unread) {
    prompt.starved.reset();
  } else if (!prompt.starved) {
    prompt.starved = now;
  }
}

StepCandidate Sequence::ready(int chunk) const {
  if (decode.unread || preemption.pending) return not_ready();
  if (decodes()) {
    return {.tokens = may_decode() ? 1 : 0,
            .prompt = false,
            .scored = false,
            .tenant = request.caller.group()};
  }
  const int remaining = prompt.remaining();
  const bool more = request.more_prompt != nullptr || (guide != nullptr && !guide->ready());
  int whole = more ? (remaining - 1) / chunk * chunk : remaining;
  if (const auto to_cut = prompt.to_cut()) whole = std::min(whole, *to_cut);
  // A streamed prompt, that reason_to_end() ends; others are checked on arrival.
  if (const int64_t room = most_tokens - planned_position(); whole > room) {
    whole = static_cast<int>(room) / chunk * chunk;
  }
  return {.tokens = leaving ? 0 : whole,
          .prompt = true,
          .scored = scored(),
          .rank = prompt.rank,
          .most = prompt.to_point().value_or(INT32_MAX),
          .tenant = request.caller.group(),
          .weight = request.caller.limits.weight};
}

bool Sequence::may_decode() const {
  if (leaving || decode.generated + decode.tokens_under_way >= request.sampling.max_tokens)
    return false;
  if (planned_position() >= most_tokens) return false;
  if (scored()) return false;  // scoring may still find an error
  // The mask depends on the token that is under way.
  if (guide != nullptr && (decode.tokens_under_way > 0 || !guide->ready())) return false;
  return !request.wait_for_acknowledgement ||
         (decode.tokens_under_way == 0 && decode.acknowledged >= decode.generated);
}

std::optional<Clock::time_point> Sequence::patience_ends() const {
  if (decode.unread) return *decode.unread + request.read_patience;
  if (request.more_prompt == nullptr || !prompt.starved) return std::nullopt;
  return *prompt.starved + request.more_prompt->patience();
}

void Sequence::launch(int rows, bool sampled) {
  if (!decodes()) prompt.launched += static_cast<size_t>(rows);
  ++under_way;
  rows_under_way += rows;
  decode.tokens_under_way += sampled;
}

void Sequence::absorb(int rows, bool sampled) {
  --under_way;
  rows_under_way -= rows;
  decode.tokens_under_way -= sampled;
  position += rows;
  if (!in_prompt()) {
    if (rows > 0) log.add(decode.token, TokenLog::Form::kStep);
    decode.absorbed = true;
    return;
  }
  const size_t from = prompt.absorbed, count = static_cast<size_t>(rows);
  prompt.launched -= count;
  prompt.absorbed += count;
  // The pending token is in the history since it was sampled.
  const size_t unknown = std::max(from, prompt.has_pending);
  history.add_prompt(std::span(prompt.ids).subspan(unknown, prompt.absorbed - unknown));
  log_prompt(from);
}

void Sequence::log_prompt(size_t from) {
  if (log.most() == 0) return;
  for (size_t i = from; i < prompt.absorbed; ++i) {
    using Form = TokenLog::Form;
    const Form first = prompt.has_pending > 0 ? Form::kFirstPending : Form::kFirst;
    log.add(prompt.ids[i], i == 0 ? first : Form::kPrompt);
  }
}

void Sequence::append(int32_t token) {
  if (in_prompt()) {
    decode.first_token = Clock::now();
    prompt.ids.clear();
  }
  history.add_generated(token);
  if (durable_answer) durable_answer->ids.push_back(token);
  decode.token = token;
  decode.absorbed = false;
  ++decode.generated;
}

TokenHistory Sequence::context_history() const {
  TokenHistory context = history;
  context.add_prompt(std::span(prompt.ids).subspan(std::max(prompt.absorbed, prompt.has_pending)));
  return context;
}

void Sequence::apply_signals(Clock::time_point now) {
  const std::optional<Reason> reason = reason_to_end(now);
  leaving = reason.has_value();
  if (reason && under_way == 0) end(reason->reason, reason->message);
}

std::optional<Sequence::Reason> Sequence::reason_to_end(Clock::time_point now) {
  const TokenStream::ClientSignals signals = stream().signals();
  decode.acknowledged = signals.acknowledged;
  if (!signals.full) decode.unread.reset();
  if (signals.full && !decode.unread) decode.unread = now;
  if (error != nullptr) return Reason{EndReason::kInternal, error};
  if (signals.stop_after && decode.generated >= *signals.stop_after)
    return Reason{EndReason::kStopString};
  if (signals.cancelled) return Reason{EndReason::kCancelled};
  if (request.deadline && *request.deadline <= now) return Reason{EndReason::kDeadline};
  // A streamed prompt; others are checked on arrival.
  if (planned_position() + unabsorbed() > most_tokens || position >= most_tokens) {
    return Reason{EndReason::kInvalid,
                  "the text has more tokens than a state of the model can hold"};
  }
  if (const auto until = patience_ends(); until && *until <= now) {
    return Reason{EndReason::kStalled, decode.unread
                                           ? "the client read nothing of the answer for too long"
                                           : "the client sent no more of the prompt for too long"};
  }
  return std::nullopt;
}

void Sequence::end(EndReason reason, const char* message) {
  if (ended) return;
  StreamEnd last = ending(reason);
  last.message = message;
  for (size_t c = 1; c < request.streams.size(); ++c) request.streams[c]->finish(last);
  if (!hold_for_commit(last)) stream().finish(std::move(last));
  ended = true;
}

// Stores the end of a durable answer until the commit. True if the client must wait for that.
bool Sequence::hold_for_commit(const StreamEnd& last) {
  if (!durable_answer || !is_answer(last.reason)) return false;
  durable_answer->ending = last;
  return durable_answer->wait_for_commit;
}

void Sequence::end_with(SampledToken token, EndReason reason, int32_t stop_id) {
  StreamEnd last = ending(reason);
  last.stop_id = stop_id;
  if (hold_for_commit(last)) {
    stream().push(std::move(token));
  } else {
    stream().push_last(std::move(token), std::move(last));
  }
  ended = true;
}

StreamEnd Sequence::ending(EndReason reason) const {
  const Clock::time_point now = Clock::now();
  const Clock::time_point prefilled = in_prompt() ? now : decode.first_token;
  return {.reason = reason,
          .prompt_tokens = prompt.tokens,
          .prefix = prompt.prefix,
          .generated_tokens = decode.generated,
          .session_position = position,
          .queue_seconds = seconds_between(request.arrival, started),
          .prefill_seconds = seconds_between(started, prefilled),
          .decode_seconds = seconds_between(prefilled, now),
          .embedding = pooled.mean()};
}

}  // namespace recurve
