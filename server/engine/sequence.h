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

// One choice of a request, in its slot. Its stream has had its last word once `ended` is set.
struct Sequence {
  SamplingParams sampling;
  std::shared_ptr<TokenStream> stream;
  Identity caller = kAnyone;
  std::optional<Clock::time_point> deadline;
  bool wait_for_acknowledgement = false;
  Session* session = nullptr;

  StateSlot slot = {};
  std::vector<int32_t> input = {};  // prompt first; once that is absorbed, the token sampled last
  size_t absorbed = 0;              // of input
  size_t launched = 0;              // of the prompt behind that: in steps that are under way
  int under_way = 0;                // steps it takes part in
  int tokens_under_way = 0;         // of these, steps that sample a token
  size_t has_pending = 0;           // 1: the prompt begins with a token that was pending before
  std::optional<int32_t> replaced = {};  // was pending before; the prompt says its like anew
  bool prompt = true;                    // input is the prompt
  int64_t position = 0;                  // tokens the state has absorbed
  TokenHistory history;
  int64_t prompt_tokens = 0;
  std::shared_ptr<PromptFeed> feed = {};          // what follows the input; null: nothing
  std::optional<Clock::time_point> starved = {};  // since then there is too little to absorb
  Clock::duration read_patience = {};
  std::optional<Clock::time_point> unread = {};  // since then its stream is full, and it waits
  int64_t generated = 0;

  // While the prompt runs: the further choices', which take their slots where it ends.
  std::vector<std::shared_ptr<TokenStream>> siblings = {};

  Clock::time_point arrival, started;
  int priority = 0;
  int64_t place = 0;  // its prompt's among the others, as in Pending
  Clock::time_point first_token = {};
  int64_t acknowledged = 0;     // of the generated tokens, by the door's side
  bool leaving = false;         // takes part in no further step: it ends once those are done
  const char* error = nullptr;  // why it leaves, if the model failed
  bool ended = false;

  // Of the input: what no step has taken yet.
  int left() const { return static_cast<int>(input.size() - absorbed - launched); }
  bool scored() const { return prompt && sampling.prompt_logprobs >= 0; }
  // Whether its next step absorbs the token sampled last, whether or not that is known here yet.
  bool decodes() const { return !prompt || tokens_under_way > 0; }
  // The token sampled last, by this request or by the one before it, if the state has not absorbed
  // it.
  std::optional<int32_t> pending() const;
  // Takes what has come of the prompt since, in place of what is absorbed.
  void refill(int chunk, Clock::time_point now);
  // What there is for the next step. Of a prompt of which more will come, whole chunks only, and
  // not its last token so far: the next one is wanted to score it.
  Pending ready(int chunk) const;
  // That it takes no part in the next step.
  Pending waits() const {
    return {.tokens = 0, .prompt = !decodes(), .scored = scored(), .place = place};
  }
  // When it is ended if nothing has come until then.
  std::optional<Clock::time_point> patience_ends() const;

  // Takes part in a step, with that many rows of its input.
  void launch(int rows, bool sampled);
  // The step is done: the state has absorbed the next `rows` of the input.
  void absorb(int rows, bool sampled);
  // `token` has been sampled and is the next input.
  void say(int32_t token);

  // What was said up to the end of the prompt, of which all is launched.
  TokenHistory context_history() const;

  // Ends it if it was cancelled, has run out of time, has met its stop string or has an error: at
  // once, or if it takes part in steps that are under way, when it is called after those.
  void obey(Clock::time_point now);
  // Tells the stream, and the siblings' streams if they have not begun. No-op once ended.
  void end(Finish why, const char* message = "");
  // Likewise, together with the last token. stop_id: as in Ending.
  void end_with(SampledToken token, Finish why, int32_t stop_id);

 private:
  struct Reason {
    Finish why;
    const char* message = "";
  };
  bool may_decode() const;
  std::optional<Reason> reason_to_end(Clock::time_point now);
  Ending ending(Finish why) const;
};

}  // namespace recurve
