#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/request/clock.h"
#include "server/request/prompt_feed.h"
#include "server/request/token_stream.h"
#include "server/sampling/params.h"

namespace recurve {

// A step of priority is worth as much as having come so much earlier. So whoever waits passes, in
// the end, all that is more important and came later: nobody waits for ever.
inline constexpr std::chrono::seconds kPriorityStep{10};
inline constexpr int kMaxPriority = 10;

// Where a request stands among others: who has the smaller one goes first.
inline int64_t place_of(Clock::time_point arrival, int priority) {
  return (arrival - priority * kPriorityStep).time_since_epoch().count();
}

// What a client asked for, validated and tokenised. Plain data; moved, never shared.
struct Request {
  std::string id = {};  // for logs and for Abort; unique among the requests under way
  // Without BOS; may be empty where a session has a pending token.
  std::vector<int32_t> prompt = {};
  // What the client sent reads differently where it goes on after what a session has absorbed; this
  // then, instead of `prompt`. Absent: the same ids.
  std::optional<std::vector<int32_t>> continued_prompt = {};
  // A session's pending token that is one of these is not absorbed: continued_prompt begins with
  // its like.
  std::vector<int32_t> replaces_pending = {};
  // Why `prompt` or `continued_prompt` cannot be absorbed where it is their turn; empty: it can.
  std::string start_refusal = {}, continuation_refusal = {};
  // What follows `prompt`, which has at least one id then, while it is still being sent; null:
  // nothing. Not together with a session or several choices.
  std::shared_ptr<PromptFeed> more_prompt = {};
  // Put in front of the prompt where the state is fresh: no session, or one that is still empty.
  std::optional<int32_t> bos = {};
  // Choice c samples with seed + c. max_tokens 0: the prompt is absorbed, and scored if asked for,
  // and nothing is generated.
  SamplingParams sampling = {};
  std::string session = {};  // name; empty: none. Not together with several choices.
  // A token is only absorbed once the rpc side has acknowledged it. Set where a stop string must
  // end a session's text at exactly one token, whatever the timing.
  bool wait_for_acknowledgement = false;
  std::optional<Clock::time_point> deadline = {};
  // A stream that has been full for so long is ended: its slot is wanted.
  Clock::duration read_patience = std::chrono::seconds(60);
  int priority = 0;  // [-kMaxPriority, kMaxPriority], see place_of
  Clock::time_point arrival = Clock::now();
  std::vector<std::shared_ptr<TokenStream>> streams = {};  // one a choice; at least one
};

}  // namespace recurve
