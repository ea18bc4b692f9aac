#pragma once
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/identity/identity.h"
#include "server/request/clock.h"
#include "server/request/durability.h"
#include "server/request/prefix_use.h"
#include "server/request/prompt_feed.h"
#include "server/request/token_stream.h"
#include "server/sampling/params.h"

namespace recurve {

// A step of priority is worth as much as having come so much earlier. So a request that
// waits passes, in the end, all that are more important and came later: none waits for ever.
inline constexpr std::chrono::seconds kPriorityStep{10};
inline constexpr int kMaxPriority = 10;

// Where a request stands among others: who has the smaller one goes first.
inline int64_t rank_of(Clock::time_point arrival, int priority) {
  return (arrival - priority * kPriorityStep).time_since_epoch().count();
}

// A prompt as it reads at one place of a context, as ids.
struct PromptReading {
  PromptReading(std::vector<int32_t> ids_ = {}) : ids(std::move(ids_)) {}
  PromptReading(std::initializer_list<int32_t> ids_) : ids(ids_) {}

  std::vector<int32_t> ids;
  // A session's pending token that is one of these is not absorbed: `ids` begin with its like.
  std::vector<int32_t> replaces_pending = {};
  // Why it cannot be absorbed there, in a sentence; empty: it can.
  std::string refusal = {};
  PrefixPoints prefix_points = {};  // where its states should be kept, if it begins a text
};

// What a client asked for, validated and tokenised. Plain data; moved, never shared.
struct Request {
  std::string id = {};  // for logs and for Abort; unique among the tenant's requests under way
  Identity caller = kAnyone;
  // What a fresh state absorbs: BOS, where the model wants it, and the prompt. May be empty where a
  // session has a pending token.
  PromptReading prompt = {};
  // What the state of a session absorbs that is not fresh any more. Absent: the same.
  std::optional<PromptReading> continued_prompt = {};
  // What follows `prompt`, which has at least one id then, while it is still being sent; null:
  // nothing. Not together with a session or several choices.
  std::shared_ptr<PromptFeed> more_prompt = {};
  // Choice c samples with seed + c. max_tokens 0: the prompt is absorbed, and scored if asked for,
  // and nothing is generated.
  SamplingParams sampling = {};
  std::string session = {};  // of the caller's tenant; empty: none. Not with several choices.
  // The session must have this epoch; absent: any.
  std::optional<uint64_t> expected_epoch = {};
  PrefixMode prefix = PrefixMode::kUseAndStore;
  // What the session must be; kNone: the answer ends without waiting for the disk that it is
  // written to. Absent: as the session is.
  std::optional<Durability> durability = {};
  bool seed_is_drawn = false;  // the client has named none
  uint64_t stop_digest = 0;    // of what ends the answer and only its frontend knows of
  // A token is only absorbed once the frontend has acknowledged it. Set where a stop string must
  // end a session's text at exactly one token, whatever the timing.
  bool wait_for_acknowledgement = false;
  std::optional<Clock::time_point> deadline = {};
  // A stream that has been full for so long is ended: its slot is wanted.
  Clock::duration read_patience = std::chrono::seconds(60);
  int priority = 0;  // [-kMaxPriority, kMaxPriority], see rank_of
  Clock::time_point arrival = Clock::now();
  std::vector<std::shared_ptr<TokenStream>> streams = {};  // one a choice; at least one
};

}  // namespace recurve
