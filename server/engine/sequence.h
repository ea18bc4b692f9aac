#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "model/state/state_pool.h"
#include "server/constraint/guide.h"
#include "server/request/request.h"
#include "server/sampling/token_history.h"
#include "server/scheduler/scheduler.h"
#include "server/session/session_store.h"

namespace recurve {

// What a sequence absorbs before its first token.
struct PromptPhase {
  std::vector<int32_t> ids = {};                  // until the first token is there
  PrefixUse prefix = {};                          // what of ids was absorbed before it began
  std::vector<int64_t> points = {};               // of ids: where its state is to be kept
  size_t absorbed = 0;                            // of ids
  size_t launched = 0;                            // of those behind: in steps that are under way
  size_t has_pending = 0;                         // 1: the first was pending before
  std::optional<int32_t> replaced_pending = {};   // was pending before; ids say its like anew
  int64_t tokens = 0;                             // all that have come
  int64_t rank = 0;                               // among others' prompts, as in StepCandidate
  std::optional<Clock::time_point> starved = {};  // since then there is too little to absorb

  int remaining() const { return static_cast<int>(ids.size() - absorbed - launched); }
  bool is_absorbed() const { return absorbed == ids.size(); }
  // Tokens to the next point; empty: there is none.
  std::optional<int> to_point() const;
};

// The tokens that are sampled, each of which is the next step's input.
struct DecodePhase {
  int32_t token = -1;        // sampled last
  bool absorbed = false;     // by the state
  int tokens_under_way = 0;  // steps under way that sample a token
  int64_t generated = 0;
  int64_t acknowledged = 0;  // of these, by the frontend
  Clock::time_point first_token = {};
  std::optional<Clock::time_point> unread = {};  // since then its stream is full, and it waits
};

// Of an answer that is acknowledged once it is on the disk: what is written with its state, and its
// last word meanwhile.
struct DurableAnswer {
  StateAnswer answer;
  std::vector<int32_t> ids = {};
  std::optional<StreamEnd> ending = {};
  bool wait_for_commit = true;  // else it ends without waiting for the disk
};

// One choice of a request, in its slot or waiting for one. Its stream has had its last word once
// `ended` is set.
struct Sequence {
  // While it runs, without its prompts. The further choices' streams stand behind its own until
  // the end of the prompt, where they take their slots.
  Request request = {};
  bool requeued = false;  // other choices of the request have their slots
  Clock::time_point started = {};

  Session* session = nullptr;  // marked busy for this request; null: none
  StateSlot slot = {};
  int64_t position = 0;                                       // tokens the state has absorbed
  int64_t most_tokens = std::numeric_limits<int64_t>::max();  // that it can have: StateLayout
  TokenHistory history;
  std::shared_ptr<Guide> guide;  // null: its text may be anything

  PromptPhase prompt;
  DecodePhase decode;
  int under_way = 0;            // steps it takes part in
  bool leaving = false;         // takes part in no further step: it ends once those are done
  const char* error = nullptr;  // why it leaves, if the model failed
  bool ended = false;
  std::optional<DurableAnswer> durable_answer;  // set: its session is durable

  TokenStream& stream() const { return *request.streams.front(); }
  int further_choices() const { return static_cast<int>(request.streams.size()) - 1; }
  bool has_slot() const { return session != nullptr && session->slot; }
  // Whether its first token is still to come.
  bool in_prompt() const { return decode.generated == 0; }
  bool scored() const { return in_prompt() && request.sampling.prompt_logprobs >= 0; }
  // Whether its next step absorbs the token sampled last, whether or not that is known here yet.
  bool decodes() const { return !in_prompt() || decode.tokens_under_way > 0; }
  // The token sampled last, by this request or by the one before it, if the state has not absorbed
  // it.
  std::optional<int32_t> pending() const;
  // Takes what has come of the prompt since, in place of what is absorbed.
  void refill(int chunk, Clock::time_point now);
  // What there is for the next step. Of a prompt of which more will come, whole chunks only, and
  // not its last token so far: the next one is wanted to score it. The same while it is not known
  // yet what its answer may begin with.
  StepCandidate ready(int chunk) const;
  // That it takes no part in the next step.
  StepCandidate not_ready() const {
    return {.tokens = 0,
            .prompt = !decodes(),
            .scored = scored(),
            .rank = prompt.rank,
            .tenant = request.caller.group()};
  }
  // When it is ended if nothing has come until then.
  std::optional<Clock::time_point> patience_ends() const;

  // Takes part in a step, with that many rows: of its prompt, or its token.
  void launch(int rows, bool sampled);
  // The step is done: the state has absorbed those rows.
  void absorb(int rows, bool sampled);
  // `token` has been sampled and is the next input.
  void append(int32_t token);

  // What was said up to the end of the prompt, of which all is launched.
  TokenHistory context_history() const;

  // Applies what its client has signalled: ends it if it was cancelled, has run out of time, has
  // met its stop string or has an error. At once, or, if it takes part in steps that are under way,
  // when this is called after those.
  void apply_signals(Clock::time_point now);
  // Tells its stream, and those of further choices that have not begun. No-op once ended.
  void end(EndReason reason, const char* message = "");
  // The same, together with the last token. stop_id: as in StreamEnd.
  void end_with(SampledToken token, EndReason reason, int32_t stop_id);

 private:
  struct Reason {
    EndReason reason;
    const char* message = "";
  };
  bool may_decode() const;
  std::optional<Reason> reason_to_end(Clock::time_point now);
  StreamEnd ending(EndReason reason) const;
  bool hold_for_commit(const StreamEnd& last);
};

}  // namespace recurve
