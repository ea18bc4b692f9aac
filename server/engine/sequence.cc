#include "server/engine/sequence.h"

#include <algorithm>
#include <span>
#include <utility>

namespace recurve {

std::optional<int32_t> Sequence::pending() const {
  if (absorbed == 0 && prompt && replaced) return replaced;
  if (absorbed > 0 || (prompt && has_pending == 0)) return std::nullopt;
  return input.front();
}

void Sequence::refill(int chunk, Clock::time_point now) {
  if (feed == nullptr) return;
  input.erase(input.begin(), input.begin() + static_cast<ptrdiff_t>(absorbed));
  absorbed = 0;
  const size_t before = input.size();
  const bool more_will_come = feed->take(&input);
  prompt_tokens += static_cast<int64_t>(input.size() - before);
  // What has come now stands behind what others brought before: a text without end holds up nobody.
  if (input.size() > before) place = place_of(now, priority);
  if (!more_will_come) feed.reset();
  if (ready(chunk).tokens > 0 || unread) {
    starved.reset();
  } else if (!starved) {
    starved = now;
  }
}

Pending Sequence::ready(int chunk) const {
  if (unread) return waits();
  if (decodes()) return {.tokens = may_decode() ? 1 : 0, .prompt = false, .scored = false};
  const int whole = feed != nullptr ? (left() - 1) / chunk * chunk : left();
  return {.tokens = leaving ? 0 : whole, .prompt = true, .scored = scored(), .place = place};
}

bool Sequence::may_decode() const {
  if (leaving || generated + tokens_under_way >= sampling.max_tokens) return false;
  if (scored()) return false;  // an error may be found yet
  return !wait_for_acknowledgement || (tokens_under_way == 0 && acknowledged >= generated);
}

std::optional<Clock::time_point> Sequence::patience_ends() const {
  if (unread) return *unread + read_patience;
  if (feed == nullptr || !starved) return std::nullopt;
  return *starved + feed->patience();
}

void Sequence::launch(int rows, bool sampled) {
  if (!decodes()) launched += static_cast<size_t>(rows);
  ++under_way;
  tokens_under_way += sampled;
}

void Sequence::absorb(int rows, bool sampled) {
  --under_way;
  tokens_under_way -= sampled;
  if (prompt) launched -= static_cast<size_t>(rows);
  const size_t from = absorbed;
  absorbed += static_cast<size_t>(rows);
  position += rows;
  if (!prompt) return;
  // A token that was pending is in the history since it was sampled.
  const size_t unknown = std::max(from, has_pending);
  history.add_prompt(std::span(input).subspan(unknown, absorbed - unknown));
}

void Sequence::say(int32_t token) {
  if (generated == 0) first_token = Clock::now();
  history.add_generated(token);
  input.assign(1, token);
  absorbed = 0;
  prompt = false;
  ++generated;
}

TokenHistory Sequence::context_history() const {
  TokenHistory said = history;
  said.add_prompt(std::span(input).subspan(std::max(absorbed, has_pending)));
  return said;
}

void Sequence::obey(Clock::time_point now) {
  const std::optional<Reason> reason = reason_to_end(now);
  leaving = reason.has_value();
  if (reason && under_way == 0) end(reason->why, reason->message);
}

std::optional<Sequence::Reason> Sequence::reason_to_end(Clock::time_point now) {
  const TokenStream::Wishes wishes = stream->wishes();
  acknowledged = wishes.acknowledged;
  if (!wishes.full) unread.reset();
  if (wishes.full && !unread) unread = now;
  if (error != nullptr) return Reason{Finish::kInternal, error};
  if (wishes.stop_after && generated >= *wishes.stop_after) return Reason{Finish::kStopString};
  if (wishes.cancelled) return Reason{Finish::kCancelled};
  if (deadline && *deadline <= now) return Reason{Finish::kDeadline};
  if (const auto until = patience_ends(); until && *until <= now) {
    return Reason{Finish::kStalled,
                  unread ? "nothing of the answer was read for too long: read it as it comes"
                         : "no more of the text came for too long: send it faster, or in requests"};
  }
  return std::nullopt;
}

void Sequence::end(Finish why, const char* message) {
  if (ended) return;
  Ending last = ending(why);
  last.message = message;
  for (const auto& sibling : siblings) sibling->finish(last);
  stream->finish(std::move(last));
  ended = true;
}

void Sequence::end_with(SampledToken token, Finish why, int32_t stop_id) {
  Ending last = ending(why);
  last.stop_id = stop_id;
  stream->push_last(std::move(token), std::move(last));
  ended = true;
}

Ending Sequence::ending(Finish why) const {
  const Clock::time_point now = Clock::now();
  const Clock::time_point prefilled = generated > 0 ? first_token : now;
  return {.why = why,
          .prompt_tokens = prompt_tokens,
          .generated_tokens = generated,
          .session_position = position,
          .queue_seconds = seconds_between(arrival, started),
          .prefill_seconds = seconds_between(started, prefilled),
          .decode_seconds = seconds_between(prefilled, now)};
}

}  // namespace recurve
