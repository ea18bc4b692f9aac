#include "server/engine/sequence.h"

#include <algorithm>
#include <span>
#include <utility>

namespace recurve {

std::optional<int32_t> Sequence::pending() const {
  if (absorbed > 0 || (prompt && owed == 0)) return std::nullopt;
  return input.front();
}

Pending Sequence::ready() const {
  const bool waits = wait_for_acknowledgement && !prompt && acknowledged < generated;
  return {.tokens = waits ? 0 : left(), .prompt = prompt, .scored = scored()};
}

void Sequence::absorb(int rows) {
  const size_t from = absorbed;
  absorbed += static_cast<size_t>(rows);
  position += rows;
  if (!prompt) return;
  // A token that was pending is in the history since it was sampled.
  const size_t unknown = std::max(from, owed);
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

void Sequence::obey(Clock::time_point now) {
  const TokenStream::Wishes wishes = stream->wishes();
  acknowledged = wishes.acknowledged;
  if (wishes.stop_after && generated >= *wishes.stop_after) {
    end(Finish::kStopString);
  } else if (wishes.cancelled) {
    end(Finish::kCancelled);
  } else if (deadline && *deadline <= now) {
    end(Finish::kDeadline);
  }
}

void Sequence::end(Finish why, const char* message) {
  if (ended) return;
  ended = true;
  Ending last = ending(why);
  last.message = message;
  for (auto& sibling : siblings) sibling.stream->finish(last);
  stream->finish(std::move(last));
}

void Sequence::end_with(SampledToken token, Finish why, int32_t stop_id) {
  ended = true;
  Ending last = ending(why);
  last.stop_id = stop_id;
  stream->push_last(std::move(token), std::move(last));
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
