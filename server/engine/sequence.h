#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "model/state/state_pool.h"
#include "server/request/request.h"
#include "server/sampling/token_history.h"
#include "server/session/session_store.h"

namespace recurve {

// A request on its way through the queue, with what the engine has found out about it on arrival.
struct Waiting {
  Request request;
  std::vector<int32_t> input;  // all that is to be absorbed before the first token is sampled
  Session* session = nullptr;  // marked busy for this request; null: none
};

// One choice of a request, in its slot.
struct Sequence {
  SamplingParams sampling;
  std::shared_ptr<TokenStream> stream;
  std::optional<Clock::time_point> deadline;
  bool wait_for_acknowledgement = false;
  Session* session = nullptr;

  StateSlot slot;
  std::vector<int32_t> input = {};  // prompt first; once that is absorbed, the token sampled last
  size_t absorbed = 0;              // of input
  size_t owed = 0;                  // 1: the input begins with a token that was pending before
  bool prompt = true;               // input is the prompt
  int64_t position = 0;             // tokens the state has absorbed
  TokenHistory history;
  int64_t prompt_tokens = 0;
  int64_t generated = 0;

  // While the prompt runs: what the further choices will start from.
  struct Sibling {
    std::shared_ptr<TokenStream> stream;
    StateSlot slot;
  };
  std::vector<Sibling> siblings = {};

  Clock::time_point arrival, started;
  Clock::time_point first_token = {};
  int64_t acknowledged = 0;  // of the generated tokens, by the rpc side
  bool ended = false;

  int left() const { return static_cast<int>(input.size() - absorbed); }
  // The token sampled last, by this request or by the one before it, if the state has not absorbed
  // it.
  std::optional<int32_t> pending() const {
    if (absorbed > 0 || (prompt && owed == 0)) return std::nullopt;
    return input.front();
  }
};

}  // namespace recurve
