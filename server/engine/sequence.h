#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/state/state_pool.h"
#include "server/constraint/guide.h"
#include "server/prefix/prefix_scope.h"
#include "server/request/request.h"
#include "server/sampling/token_history.h"
#include "server/scheduler/preemption.h"
#include "server/scheduler/scheduler.h"
#include "server/session/session_store.h"

namespace recurve {

// The prompt of a sequence, until its first token is sampled.
struct PromptPhase {
  std::vector<int32_t> ids = {};                  // cleared when the first token is sampled
  PrefixUse prefix = {};                          // the cached state that it started from
  std::vector<int64_t> points = {};               // offsets in ids where its state is cached
  std::vector<int64_t> cuts = {};                 // offsets in ids that no step goes beyond, or to
  size_t absorbed = 0;                            // of ids
  size_t launched = 0;                            // of the ids after `absorbed`, in steps under way
  size_t has_pending = 0;                         // 1: ids begin with the session's pending token
  std::optional<int32_t> replaced_pending = {};   // the session's pending token, if ids replace it
  int64_t tokens = 0;                             // all received so far
  int64_t rank = 0;                               // see StepCandidate
  std::optional<Clock::time_point> starved = {};  // since when ids are too few for a step

  int remaining() const { return static_cast<int>(ids.size() - absorbed - launched); }
  bool is_absorbed() const { return absorbed == ids.size(); }
  // Tokens up to the next of `points`; empty: no further one.
  std::optional<int> to_point() const { return to_next(points); }
  // The same of `cuts`.
  std::optional<int> to_cut() const { return to_next(cuts); }

 private:
  std::optional<int> to_next(const std::vector<int64_t>& offsets) const;
};

// The tokens that are sampled, each of which is the next step's input.
struct DecodePhase {
  int32_t token = -1;        // sampled last
  bool absorbed = false;     // by the state
  int tokens_under_way = 0;  // steps under way that sample a token
  int64_t generated = 0;
  int64_t acknowledged = 0;  // of the generated ones, by the frontend
  Clock::time_point first_token = {};
  std::optional<Clock::time_point> unread = {};  // since when its stream is full
};

// The answer of a durable session. It is written together with the state, and its end is sent
// after the commit.
struct DurableAnswer {
  StateAnswer answer;
  std::vector<int32_t> ids = {};
  std::optional<StreamEnd> ending = {};
  bool wait_for_commit = true;  // false: the end is sent at once
};

// What a request waits for before it is queued: the state of its session, or of its prompt's
// prefix, which is on disk alone. Shared with the read, which is not cancelled.
struct DiskRead {
  bool under_way = false;  // false: it is done, or there is no memory for the state yet
  bool of_prefix = false;
  std::string error = {};
  EndReason reason = EndReason::kDone;
  // Of the state that a replay begins with.
  StateImage image = {};
  TokenHistory history = {};
};

// The mean of the rows that were added so far: one sum after the other, so that it is the same
// however they come in parts.
struct PooledRows {
  std::vector<double> sum = {};  // (width)
  int64_t count = 0;

  void add(std::span<const float> hidden, int rows);  // (rows, width)
  std::vector<float> mean() const;
};

// What a sequence that gives its slot and pages to others needs to continue.
struct Preemption {
  int count = 0;  // times so far
  Clock::time_point last = {};
  bool pending = false;   // it is in no further step, and leaves its slot after those under way
  StateImage state = {};  // while it waits for a slot again; null: it does not
};

// One choice of a request, in the waiting line or in its slot. Once `ended` is set, its stream has
// received its StreamEnd.
struct Sequence {
  // Its prompts are empty while it runs. streams[0] is this choice's; the streams of further
  // choices follow until the end of the prompt, where those choices get their slots.
  Request request = {};
  bool requeued = false;          // by requeue(): earlier choices of the request run already
  double first_token_within = 0;  // seconds from arrival, by which it was admitted; 0: any time
  Clock::time_point started = {};

  std::shared_ptr<DiskRead> disk_read = {};  // null: it waits for no disk
  Session* session = nullptr;                // marked busy for this request; null: none
  StateSlot slot = {};
  int64_t position = 0;                                       // tokens the state has absorbed
  int64_t most_tokens = std::numeric_limits<int64_t>::max();  // limit of position
  TokenHistory history;
  TokenLog log;                    // of its session
  std::unique_ptr<Replay> replay;  // null: it serves a request
  std::shared_ptr<Guide> guide;    // null: no constraint

  PromptPhase prompt;
  DecodePhase decode;
  PooledRows pooled;       // of a request for an embedding
  int under_way = 0;       // launched steps that include it
  int rows_under_way = 0;  // its rows in those steps
  Preemption preemption = {};
  bool sampler_unset = false;  // it decodes in a slot whose sampling parameters are not its own yet
  bool leaving = false;        // in no further step; ends when those under way are done
  const char* error = nullptr;  // set if the model failed
  bool ended = false;
  std::optional<DurableAnswer> durable_answer;  // set: its session is durable

  TokenStream& stream() const { return *request.streams.front(); }
  int further_choices() const { return static_cast<int>(request.streams.size()) - 1; }
  // Of a request in line: the state that it starts from, of its session or an initial one; null: an
  // empty one.
  const Snapshot* begin() const;
  int64_t begin_position() const { return begin() != nullptr ? begin()->position : 0; }
  // That of its session or, without one, of its request; null: none.
  const BoundAdapter* adapter() const {
    return (session != nullptr ? session->binding : request.binding).adapter.get();
  }
  // Of a request in line: from an empty state.
  bool starts_fresh() const {
    return begin() == nullptr || (begin()->position == 0 && !begin()->pending);
  }
  // Of a request in line, whose session's state is not on the disk alone: the prompt begins a text,
  // as only control tokens precede it.
  bool starts_text() const {
    return starts_fresh() ||
           (request.control_ids && begin()->history.is_within(*request.control_ids));
  }
  // The prompts that may share their prefixes with it.
  PrefixScope prefix_scope() const;
  bool has_slot() const { return session != nullptr && session->slot && !replay; }
  // Tokens that the state will have absorbed after all launched steps.
  int64_t planned_position() const { return position + rows_under_way; }
  // Tokens of its prompt, as far as it is known, that no launched step has.
  int64_t unabsorbed() const { return in_prompt() ? prompt.remaining() : 0; }
  // The most that the state may come to absorb for this request, as far as its prompt is known.
  int64_t final_position() const;
  // It waits for a slot again, with its state.
  bool is_preempted() const { return preemption.state != nullptr; }
  // It has all pages that it may come to need, and is not preempted any more.
  bool keeps_pages() const { return preemption.count >= kMostPreemptions; }
  // No token has been sampled yet.
  bool in_prompt() const { return decode.generated == 0; }
  bool scored() const { return in_prompt() && request.sampling.prompt_logprobs >= 0; }
  // Its next step absorbs the token sampled last, which may still be known to the device alone.
  bool decodes() const { return !in_prompt() || decode.tokens_under_way > 0; }
  // The last sampled token, of this request or of the session's previous one, if the state has not
  // absorbed it.
  std::optional<int32_t> pending() const;
  // Drops absorbed ids and appends those that have arrived for a streamed prompt.
  void refill(int chunk, Clock::time_point now);
  // Its input for the next step. While more of the prompt is to arrive, or the first mask of a
  // constraint is not ready: whole chunks only, without the last token, whose successor is needed
  // to score it.
  StepCandidate ready(int chunk) const;
  // No input: it is not in the next step.
  StepCandidate not_ready() const {
    return {.tokens = 0,
            .prompt = !decodes(),
            .scored = scored(),
            .rank = prompt.rank,
            .tenant = request.caller.group()};
  }
  // When it is ended as stalled; empty: it waits for no client.
  std::optional<Clock::time_point> patience_ends() const;

  // A step with `rows` of its prompt, or with its last token, is launched.
  void launch(int rows, bool sampled);
  // That step is done: the state has absorbed the rows.
  void absorb(int rows, bool sampled);
  // Adds the ids that are absorbed, from this one on, to the log.
  void log_prompt(size_t from);
  // `token` has been sampled and is the next input.
  void append(int32_t token);

  // The history as of the end of the prompt. All of the prompt must be launched.
  TokenHistory context_history() const;

  // Ends the sequence if its client cancelled it, its deadline has passed, a stop string was found,
  // or the model failed. If steps with it are under way, a call after them ends it.
  void apply_signals(Clock::time_point now);
  // Finishes its stream, and those of further choices that have not begun. No-op once ended.
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
