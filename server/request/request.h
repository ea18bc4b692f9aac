#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/adapters/adapter.h"
#include "server/identity/identity.h"
#include "server/request/binding.h"
#include "server/request/clock.h"
#include "server/request/prefix_use.h"
#include "server/request/prompt_feed.h"
#include "server/request/session_command.h"
#include "server/request/token_stream.h"
#include "server/sampling/params.h"

namespace recurve {

// One step of priority equals this much earlier arrival. So every waiting request gets ahead of
// later ones of higher priority in the end: none starves.
inline constexpr std::chrono::seconds kPriorityStep{10};
inline constexpr int kMaxPriority = 10;

// The request of the smallest rank is first.
inline int64_t rank_of(Clock::time_point arrival, int priority) {
  return (arrival - priority * kPriorityStep).time_since_epoch().count();
}

// The ids of a prompt, in one kind of context.
struct PromptReading {
  PromptReading(std::vector<int32_t> ids_ = {}) : ids(std::move(ids_)) {}
  PromptReading(std::initializer_list<int32_t> ids_) : ids(ids_) {}

  std::vector<int32_t> ids;
  // A session's pending token is not absorbed if it is one of these: `ids` replace it.
  std::vector<int32_t> replaces_pending = {};
  // An error message if the prompt cannot be used there; else empty.
  std::string refusal = {};
  PrefixPoints prefix_points = {};  // where its states should be cached, if the context is fresh
};

// The rows of the last hidden state whose mean is the embedding of a prompt.
enum class Pooling { kLast, kMean };

// A validated and tokenized request. Plain data; moved, never shared.
struct Request {
  // Identifies the next request of a durable session as the same one, sent again. Unique among the
  // tenant's active requests.
  std::string id = {};
  Identity caller = kAnyone;
  // For a fresh state: BOS, if the model needs it, and the prompt. May be empty if the session has
  // a pending token.
  PromptReading prompt = {};
  // For a session's state that has text. Absent: the same as `prompt`.
  std::optional<PromptReading> continued_prompt = {};
  // The first id of `prompt` is BOS, which a state that is not fresh has already.
  bool begins_with_bos = false;
  // The control tokens, a bit for each id: a state that has no other tokens has no text, and the
  // prompt begins it. Null: none.
  std::shared_ptr<const std::vector<uint64_t>> control_ids = {};
  // The rest of a streamed prompt, after `prompt`, which has at least one id then; null: none. Not
  // with a session or several choices.
  std::shared_ptr<PromptFeed> more_prompt = {};
  // Choice c samples with seed + c. max_tokens 0: the prompt is absorbed, scored if requested, and
  // nothing is generated.
  SamplingParams sampling = {};
  // The end of the stream has an embedding of the prompt. Not with a session, a cached prefix or
  // several choices; max_tokens is 0. Absent: none.
  std::optional<Pooling> pooling = {};
  std::string session = {};  // of the caller's tenant; empty: none. Not with several choices.
  // As the request names it: without a session, the request has this binding; with one, the session
  // must have what is not null.
  Binding binding = {};
  // It may start from a state that has text.
  bool may_continue() const { return !session.empty() || binding.initial_state != nullptr; }
  // Of the model, on its backend: all rows of the request are computed with it. The engine sets it
  // to that of the binding, of the session or of the request. Null: none.
  AdapterPtr adapter = {};
  // The session must have this epoch; absent: any.
  std::optional<uint64_t> expected_epoch = {};
  PrefixMode prefix = PrefixMode::kUseAndStore;
  // kLocal: the session must be durable. kNone: the end of the answer does not wait for the commit.
  // Absent: as the session is.
  std::optional<Durability> durability = {};
  bool seed_is_drawn = false;  // the client sent none
  // The client sent none: the engine lowers it to the rest of the model's context. Most answers end
  // long before it, so forecasts count with kDefaultMaxTokens.
  bool max_tokens_is_default = false;
  int32_t forecast_tokens() const {
    return max_tokens_is_default ? std::min(sampling.max_tokens, kDefaultMaxTokens)
                                 : sampling.max_tokens;
  }
  bool report_progress = false;  // of the prompt, in the stream
  uint64_t stop_digest = 0;      // of end conditions that only the frontend knows
  // A token is absorbed only after the frontend has acknowledged it. Set if a stop string must end
  // a session's text at an exact token, independent of timing.
  bool wait_for_acknowledgement = false;
  std::optional<Clock::time_point> deadline = {};
  // A stream that is full for this time is ended, to free its slot.
  Clock::duration read_patience = std::chrono::seconds(60);
  int priority = 0;  // [-kMaxPriority, kMaxPriority], see rank_of
  Clock::time_point arrival = Clock::now();
  std::vector<std::shared_ptr<TokenStream>> streams = {};  // one a choice; at least one
};

}  // namespace recurve
