#include "server/engine/engine.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "kernels/host.h"

namespace recurve {
namespace {

StepBounds bounds_for(const EngineOptions& options, int chunk) {
  const int least = options.slots + chunk;
  const int rows = std::max(options.rows_per_step, least);
  return {.rows = rows, .logits = least, .chunk = chunk, .prompt_rows = rows};
}

// One for each processor of this process, as they work while the engine waits. At least two, so
// that a slow mask does not delay the others.
int mask_threads() { return std::clamp(host_threads(), 2, 8); }
// How long a step waits for masks: the short time if other sequences are ready.
constexpr auto kShortWait = std::chrono::microseconds(300);
constexpr auto kLongWait = std::chrono::milliseconds(5);
constexpr auto kMostWait = std::chrono::milliseconds(20);  // all sequences have constraints

// The most tokens of a state.
int64_t most_tokens_of(const StateLayout& layout, const PageLimits& pages) {
  const int64_t most = layout.most_tokens();
  return layout.grows() ? std::min({most, pages.most_tokens, pages.pages * kPageTokens}) : most;
}

}  // namespace

Engine::Engine(const Model& model, Backend& backend, const SamplingVocab& vocab,
               AdmissionQueue& queue, PublishedStats& stats, EngineMetrics& metrics,
               const EngineOptions& options)
    : queue_(queue),
      published_(stats),
      metrics_(metrics),
      bounds_(bounds_for(options, model.info().chunk)),
      stream_(backend.make_stream()),
      pool_(
          backend, model.state_layout(), options.slots, *stream_, [&queue] { queue.wake(); },
          options.pages),
      states_(backend, pool_, std::max(options.sessions.host_bytes, options.prefix.bytes),
              options.sessions.archive, options.preempted_bytes),
      sessions_(states_, pool_, options.sessions, static_cast<int32_t>(model.info().vocab)),
      prefixes_(states_, pool_, model.info().chunk, options.prefix,
                {options.sessions.archive, options.sessions.identity, options.made_by}),
      waiting_(queue, sessions_, prefixes_, pool_, metrics, options.first_token,
               most_tokens_of(pool_.layout(), options.pages)),
      runner_(model, backend, *stream_, pool_, vocab, bounds_, options.adapters.get()),
      vocab_(vocab),
      masks_(mask_threads(), [&queue] { queue.wake(); }),
      delivery_(vocab, masks_, stats_, metrics),
      launch_ahead_(options.launch_ahead.value_or(backend.queues())),
      on_failure_(options.on_failure),
      batches_{runner_.make_batch(), runner_.make_batch()},
      pace_(bounds_.rows, options.step_seconds) {
  // Adding a sequence that has its slot must not fail.
  running_.reserve(static_cast<size_t>(options.slots));
  forked_.reserve(static_cast<size_t>(options.slots));
  if (backend.queues()) runner_.record(options.on_recorded);
  if (options.prefix.store != nullptr) {
    options.prefix.store->when_done([&queue] { queue.wake(); });
  }
  if (options.sessions.archive != nullptr) {
    options.sessions.archive->when_done([&queue] { queue.wake(); });
    options.sessions.archive->when_observed([this](auto call, double seconds, bool failed) {
      metrics_.observe_state_dir(static_cast<int>(call), seconds, failed);
    });
    const SessionStore::Restored restored = sessions_.restore(Clock::now());
    stats_.sessions_not_restored = restored.unknown;
    stats_.sessions_other_model = restored.other_model;
  }
  stats_.slots = options.slots;
  report(nullptr);
}

void Engine::run() {
  try {
    work();
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

void Engine::work() {
  while (!abandoned_) {
    if (step() || sessions_.has_ended()) continue;
    const bool idle = waiting_.empty() && running_.empty() && !sessions_.working();
    if (queue_.done() && idle) break;
    queue_.wait(next_event());
  }
  end_everything();
}

void Engine::abandon() {
  abandoned_ = true;
  queue_.close();  // and wakes run()
}

bool Engine::step() {
  const Clock::time_point now = Clock::now();
  waiting_.take_arrivals(load(), now);
  end_unwanted(now);
  bool preempted = preempt();
  admit(now);
  await_masks();
  Batch& next = under_way_ == &batches_[0] ? batches_[1] : batches_[0];
  gather(now, next);
  preempted |= preempt();
  Batch* launched = next.empty() ? nullptr : &next;
  if (launched != nullptr) {
    runner_.launch(*launched);
    store_prefixes(*launched);
  }
  Batch* due = launch_ahead_ ? std::exchange(under_way_, launched) : launched;
  if (due != nullptr) finish(*due);
  report(due);
  return due != nullptr || launched != nullptr || preempted;
}

// Ends sequences that were cancelled, are past their deadline or have found a stop string.
void Engine::end_unwanted(Clock::time_point now) {
  waiting_.drop_unwanted(now);
  for (const auto& sequence : waiting_.take_ended()) release(*sequence, now);
  for (const auto& sequence : running_) {
    sequence->refill(bounds_.chunk, now);  // first: new input ends a stall
    sequence->apply_signals(now);
  }
  retire(now);
}

void Engine::admit(Clock::time_point now) {
  if (!waiting_.empty()) waiting_.count_slots(running_);
  const int64_t preempted = states_.count_preempted(), planned = states_.planned_for_preempted();
  const NewRequests starts = preempted <= planned       ? NewRequests::kAll
                             : preempted / 2 <= planned ? NewRequests::kOfOthers
                                                        : NewRequests::kNone;
  const auto next = [&] {
    return waiting_.admit_next(now, static_cast<int>(running_.size()), starts);
  };
  while (auto sequence = next()) {
    if (sequence->preemption.count == 0) {
      stats_.prefix_tokens += sequence->prompt.prefix.tokens;
      guide(*sequence);
    }
    running_.push_back(std::move(sequence));
  }
  if (const auto& need = waiting_.shortage()) make_way_for(*need);
  publish();  // before their first step
}

// Starts the guide of a request with a constraint.
void Engine::guide(Sequence& sequence) {
  const SamplingParams& asked = sequence.request.sampling;
  if (asked.constraint == nullptr) return;
  GuideRules rules{.ends = asked.stop_ids,
                   .allowed = asked.allowed_ids,
                   .min_tokens = asked.min_tokens,
                   .ids = vocab_.usable,
                   .client = sequence.request.caller.group()};
  if (!asked.ignore_eos) {
    rules.ends.insert(rules.ends.end(), vocab_.eos_ids.begin(), vocab_.eos_ids.end());
  }
  sequence.guide = std::make_shared<Guide>(asked.constraint, std::move(rules));
  sequence.guide->begin(masks_);
}

// A step takes about as long for few rows as for many. If all sequences have constraints, the step
// waits for most of their masks, for at most half of its expected duration. If others are ready, it
// waits for the short time only.
void Engine::await_masks() {
  int constrained = 0, wanted = 0;
  bool others = under_way_ != nullptr;
  for (const auto& sequence : running_) {
    others |= sequence->guide == nullptr;
    if (sequence->guide == nullptr) continue;
    ++constrained;
    wanted += !sequence->guide->ready();
  }
  if (wanted == 0) return;
  if (others) return masks_.wait(kShortWait);
  if (wanted == constrained) masks_.wait(kLongWait, constrained - 1);  // at least one is needed
  constexpr int kOneOf = 8;  // part of the sequences that may be left out
  const auto half = std::chrono::duration<double>(pace_.step_seconds() / 2);
  masks_.wait(std::clamp(std::chrono::duration_cast<std::chrono::nanoseconds>(half),
                         std::chrono::nanoseconds(kShortWait), std::chrono::nanoseconds(kMostWait)),
              constrained / kOneOf);
}

// Plans the step: which sequences, with which tokens.
void Engine::gather(Clock::time_point now, Batch& batch) {
  candidates_.clear();
  int decodes = 0;
  for (const auto& sequence : running_) {
    sequence->refill(bounds_.chunk, now);
    candidates_.push_back(pool_.ready(sequence->slot) ? sequence->ready(bounds_.chunk)
                                                      : sequence->not_ready());
    if (!candidates_.back().prompt && candidates_.back().tokens > 0) ++decodes;
  }
  StepBounds bounds = bounds_;
  const bool shared = waiting_.is_shared(now);
  bounds.prompt_rows = pace_.prompt_rows(decodes, shared);
  if (shared) {
    bounds.max_prompt_rows_with_decodes = pace_.max_prompt_rows_with_decodes();
    bounds.separate_new_tenants = pace_.decodes_are_most();
  }
  StepPlan plan = plan_step(bounds, candidates_, turns_);
  turns_ = std::move(plan.turns);
  batch.clear();
  batch.set_prompts_only(turns_.prompt_only_steps > 0);
  std::vector<ShortOfPages> left_out;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    if (plan.rows[i] == 0) continue;
    const StateSlot& slot = running_[i]->slot;
    const int64_t from = running_[i]->planned_position();
    if (!pool_.grow(slot, from, from + plan.rows[i])) {
      const int32_t missing = pool_.missing_pages(slot, from, from + plan.rows[i]);
      left_out.push_back({running_[i].get(), missing});
      continue;
    }
    if (!pool_.ready(slot)) continue;  // a page is being copied
    batch.add(*running_[i], plan.rows[i]);
    if (running_[i]->further_choices() > 0 && running_[i]->decodes()) {
      fork_choices(*running_[i], batch, now);
    }
  }
  for (auto& choice : forked_) running_.push_back(std::move(choice));
  forked_.clear();
  if (!left_out.empty()) find_pages_for(left_out);
}

// The prompt is absorbed once; further choices continue from copies of its state. Those that find
// no slot are queued again.
void Engine::fork_choices(Sequence& sequence, Batch& batch, Clock::time_point now) {
  auto& streams = sequence.request.streams;
  waiting_.count_slots(running_);
  for (const auto& choice : forked_) waiting_.count_slot(*choice);
  size_t next = 1;
  for (; next < streams.size(); ++next) {
    try {
      std::optional<StateSlot> slot = waiting_.acquire_slot(sequence, now);
      if (!slot || !pool_.share_pages(sequence.slot, *slot, sequence.planned_position())) break;
      forked_.push_back(choice_of(sequence, next, std::move(*slot)));
    } catch (const std::bad_alloc&) {
      streams[next]->finish({.reason = EndReason::kNoMemory});
      continue;
    }
    batch.add_choice(sequence, *forked_.back());
  }
  try {
    if (next < streams.size()) waiting_.requeue(sequence, next);
  } catch (const std::bad_alloc&) {
    for (; next < streams.size(); ++next) streams[next]->finish({.reason = EndReason::kNoMemory});
  }
  streams.resize(1);
}

std::unique_ptr<Sequence> Engine::choice_of(const Sequence& sequence, size_t index,
                                            StateSlot slot) {
  auto choice = std::make_unique<Sequence>(
      Sequence{.request = sequence.request,
               .started = sequence.started,
               .slot = std::move(slot),
               .position = sequence.planned_position(),
               .most_tokens = sequence.most_tokens,
               .history = sequence.context_history(),
               .prompt = {.prefix = sequence.prompt.prefix, .tokens = sequence.prompt.tokens}});
  choice->request.streams = {sequence.request.streams[index]};
  choice->request.sampling.seed += index;
  if (sequence.guide != nullptr) choice->guide = sequence.guide->fork();
  return choice;
}

// Caches the states of prompts that the step has advanced to one of their points.
void Engine::store_prefixes(const Batch& launched) {
  for (const Batch::Member& member : launched.members()) {
    if (member.sequence == nullptr || member.sequence->prompt.points.empty()) continue;
    const Sequence& sequence = *member.sequence;
    const PromptPhase& prompt = sequence.prompt;
    const size_t at = prompt.absorbed + prompt.launched;
    if (member.rows == 0 || !std::ranges::binary_search(prompt.points, static_cast<int64_t>(at))) {
      continue;
    }
    prefixes_.store(sequence.prefix_scope(), std::span(prompt.ids).first(at), sequence.slot);
  }
}

void Engine::finish(Batch& batch) {
  runner_.finish(batch);
  delivery_.deliver(batch);
  retire(Clock::now());
}

// Removes ended sequences.
void Engine::retire(Clock::time_point now) {
  std::erase_if(running_, [&](std::unique_ptr<Sequence>& sequence) {
    if (!sequence->ended) return false;
    if (under_way_ != nullptr) under_way_->remove(*sequence);
    release(*sequence, now);
    return true;
  });
}

// The slot of an ended sequence returns to the pool or to its session; a preempted one has none.
void Engine::release(Sequence& sequence, Clock::time_point now) {
  holds_.observe(seconds_between(sequence.started, now), sequence.decode.generated,
                 sequence.request.forecast_tokens());
  if (!sequence.in_prompt()) {
    metrics_.observe_decode(seconds_between(sequence.decode.first_token, now));
  }
  if (sequence.session == nullptr) return;
  if (sequence.replay) return end_replay(sequence, now);
  Snapshot at{.position = sequence.position,
              .pending = sequence.pending(),
              .history = std::move(sequence.history),
              .image = sequence.preemption.state,
              .log = std::move(sequence.log)};
  std::optional<StateSlot> slot;
  if (at.image == nullptr) slot = std::move(sequence.slot);
  if (sequence.durable_answer) {
    commit_answer(sequence, std::move(slot), std::move(at), now);
  } else {
    sessions_.check_in(*sequence.session, std::move(slot), std::move(at), now);
  }
}

// The session has returned to a token, or is as it was if that broke off.
void Engine::end_replay(Sequence& sequence, Clock::time_point now) {
  Replay& replay = *sequence.replay;
  if (sequence.position < replay.log.end()) {
    StreamEnd why = *sequence.stream().take().ending;
    return sessions_.cancel_replay(replay, {.reason = why.reason,
                                            .message = std::move(why.message),
                                            .absorbed = sequence.position - replay.begin.position});
  }
  Snapshot at{.position = sequence.position,
              .pending = replay.pending,
              .history = std::move(sequence.history),
              .image = sequence.preemption.state,
              .log = std::move(replay.log)};
  if (at.pending) at.history.add_prompt(*at.pending);
  std::optional<StateSlot> slot;
  if (at.image == nullptr) slot = std::move(sequence.slot);
  try {
    sessions_.end_replay(replay, std::move(slot), std::move(at), now);
  } catch (const std::bad_alloc&) {
    sessions_.cancel_replay(replay, {.reason = EndReason::kNoMemory});
  }
}

// Commits the answer of a durable session. The client receives its end after the commit. An answer
// that did not complete is rolled back.
void Engine::commit_answer(Sequence& sequence, std::optional<StateSlot> slot, Snapshot at,
                           Clock::time_point now) {
  Session& session = *sequence.session;
  DurableAnswer& durable = *sequence.durable_answer;
  if (!durable.ending) return sessions_.roll_back(session, now);
  durable.answer.reason = row_of(durable.ending->reason).name;
  durable.answer.stop_id = durable.ending->stop_id;
  durable.answer.prompt_tokens = durable.ending->prompt_tokens;
  durable.answer.before = session.at.position;
  durable.answer.seed = sequence.request.sampling.seed;
  const auto tell = [stream = sequence.request.streams.front(), ending = *durable.ending,
                     wait_for_commit = durable.wait_for_commit](std::optional<CommitInfo> commit,
                                                                const std::string& error) {
    if (!wait_for_commit) return;  // its end has been sent
    StreamEnd last = ending;
    last.commit = commit;
    if (!error.empty()) {
      last.reason = EndReason::kNotStored;
      last.message = "the answer could not be stored, the session is unchanged: " + error;
    }
    stream->finish(std::move(last));
  };
  try {
    sessions_.commit_turn(session, std::move(slot), std::move(at), std::move(durable.answer),
                          std::move(durable.ids), tell);
  } catch (const std::bad_alloc&) {
    sessions_.roll_back(session, now);
    tell(std::nullopt, "out of memory");
  }
}

// When there is work even if no request arrives.
std::optional<Clock::time_point> Engine::next_event() const {
  std::optional<Clock::time_point> next = sessions_.next_expiry();
  const auto consider = [&](const std::optional<Clock::time_point>& when) {
    if (when && (!next || *when < *next)) next = when;
  };
  consider(waiting_.next_deadline());
  consider(prefixes_.next_write());
  consider(prefixes_.next_advance());
  for (const auto& sequence : running_) {
    consider(sequence->request.deadline);
    consider(sequence->patience_ends());
  }
  return next;
}

void Engine::end_everything() {
  queue_.close();  // no arrivals after the last take()
  if (Batch* last = std::exchange(under_way_, nullptr)) finish(*last);
  const Clock::time_point now = Clock::now();
  waiting_.take_arrivals(load(), now);
  waiting_.drop_all(EndReason::kDraining, now);
  for (const auto& sequence : waiting_.take_ended()) release(*sequence, now);
  for (const auto& sequence : running_) sequence->end(EndReason::kDraining);
  retire(now);
  sessions_.finish_work();
  report(nullptr);
}

// Ends every stream with kFailed. Allocations may fail, so each is tried separately; nothing is
// computed or stored any more.
void Engine::fail(const char* what) noexcept {
  queue_.close();
  const auto tell = [](const auto& say) noexcept {
    try {
      say();
    } catch (const std::exception&) {  // the client sees the end of the process
    }
  };
  for (auto* list : {&running_, &forked_}) {
    for (const auto& sequence : *list) {
      if (sequence == nullptr) continue;
      tell([&] { sequence->end(EndReason::kFailed); });
      if (sequence->replay && sequence->replay->command.done) {
        tell([&] { sequence->replay->command.done({.reason = EndReason::kFailed}); });
      }
      if (sequence->durable_answer && sequence->durable_answer->ending &&
          sequence->durable_answer->wait_for_commit) {
        tell([&] { sequence->stream().finish({.reason = EndReason::kFailed}); });
      }
    }
  }
  tell([&] { waiting_.drop_all(EndReason::kFailed, Clock::now()); });
  tell([&] { sessions_.finish_work(); });
  tell([&] {
    if (on_failure_) on_failure_(what);
  });
}

}  // namespace recurve
