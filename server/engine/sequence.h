#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "model/state/state_pool.h"
#include "server/request/request.h"
#include "server/sampling/token_history.h"
#include "server/scheduler/scheduler.h"
#include "server/session/session_store.h"

namespace recurve {

inline double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// One choice of a request, in its slot. Its stream has had its last word once `ended` is set.
struct Sequence {
  SamplingParams sampling;
  std::shared_ptr<TokenStream> stream;
  std::optional<Clock::time_point> deadline;
  bool wait_for_acknowledgement = false;
  Session* session = nullptr;

  StateSlot slot;
  std::vector<int32_t> input = {};  // prompt first; once that is absorbed, the token sampled last
  size_t absorbed = 0;              // of input
  size_t owed = 0;                  // 1: the prompt begins with a token that was pending before
  std::optional<int32_t> replaced = {};  // was pending before; the prompt says its like anew
  bool prompt = true;                    // input is the prompt
  int64_t position = 0;                  // tokens the state has absorbed
  TokenHistory history;
  int64_t prompt_tokens = 0;
  std::shared_ptr<PromptFeed> feed = {};          // what follows the input; null: nothing
  std::optional<Clock::time_point> starved = {};  // since then there is too little to absorb
  int64_t generated = 0;

  // While the prompt runs: what the further choices will start from.
  struct Sibling {
    std::shared_ptr<TokenStream> stream;
    StateSlot slot;
  };
  std::vector<Sibling> siblings = {};

  Clock::time_point arrival, started;
  int priority = 0;
  int64_t place = 0;  // its prompt's among the others, as in Pending
  Clock::time_point first_token = {};
  int64_t acknowledged = 0;  // of the generated tokens, by the rpc side
  bool ended = false;

  int left() const { return static_cast<int>(input.size() - absorbed); }
  bool scored() const { return prompt && sampling.prompt_logprobs >= 0; }
  // The token sampled last, by this request or by the one before it, if the state has not absorbed
  // it.
  std::optional<int32_t> pending() const;
  // Takes what has come of the prompt since, in place of what is absorbed.
  void refill(int chunk, Clock::time_point now);
  // What there is for the next step. Of a prompt of which more will come, whole chunks only, and
  // not its last token so far: the next one is wanted to score it.
  Pending ready(int chunk) const;
  // When it is ended if nothing has come until then.
  std::optional<Clock::time_point> patience_ends() const;

  // The state has absorbed the next `rows` of the input.
  void absorb(int rows);
  // `token` has been sampled and is the next input.
  void say(int32_t token);

  // Ends it if it was cancelled, has run out of time or has met its stop string.
  void obey(Clock::time_point now);
  // Tells the stream, and the siblings' streams if they have not begun. No-op once ended.
  void end(Finish why, const char* message = "");
  // Likewise, together with the last token. stop_id: as in Ending.
  void end_with(SampledToken token, Finish why, int32_t stop_id);

 private:
  Ending ending(Finish why) const;
};

}  // namespace recurve
