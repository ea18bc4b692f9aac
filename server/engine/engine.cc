#include "server/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace recurve {
namespace {

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

StepBounds bounds_for(const EngineOptions& options, int chunk) {
  const int least = options.slots + chunk;
  return {.rows = std::max(options.rows_per_step, least), .logits = least, .chunk = chunk};
}

// Sessions are looked over for idle ones, and their gauges set, this often while there is work.
constexpr auto kHousekeeping = std::chrono::milliseconds(100);

}  // namespace

Engine::Engine(const Model& model, Backend& backend, const SamplingVocab& vocab,
               AdmissionQueue& queue, EngineStats& stats, Metrics& metrics,
               const EngineOptions& options)
    : model_(model),
      backend_(backend),
      queue_(queue),
      stats_(stats),
      metrics_(metrics),
      bounds_(bounds_for(options, model.info().chunk)),
      stream_(backend.make_stream()),
      pool_(backend, model.state_layout(), options.slots, *stream_),
      sessions_(pool_, options.sessions),
      arena_(backend, model.arena_bytes({.rows = bounds_.rows, .logits = bounds_.logits})),
      sampler_(vocab),
      device_input_(backend.allocate(
          sizeof(int32_t) *
          static_cast<size_t>(bounds_.rows + 1 + 2 * options.slots + bounds_.logits))),
      device_logits_(backend.allocate(sizeof(float) * static_cast<size_t>(bounds_.logits) *
                                      static_cast<size_t>(model.info().vocab))),
      logits_(static_cast<size_t>(bounds_.logits) * static_cast<size_t>(model.info().vocab)) {
  stats_.slots = options.slots;
  report(Clock::now(), 0);
}

void Engine::run() {
  while (!abandoned_) {
    const bool last = queue_.closed();  // asked first: what came in before is taken by this step
    if (step()) continue;
    if (last && waiting_.empty() && running_.empty()) break;
    queue_.wait(next_event());
  }
  end_everything();
}

void Engine::abandon() {
  abandoned_ = true;
  queue_.close();  // and wakes run()
}

bool Engine::step() {
  const Clock::time_point began = Clock::now();
  take_arrivals(began);
  end_unwanted(began);
  retire(began);
  admit(began);
  const bool work = gather();
  if (work) {
    forward();
    deliver();
    retire(Clock::now());
  }
  report(began, static_cast<int>(tokens_.size()));
  return work;
}

// Answers what is about sessions; queues requests that can be served, refuses the others.
void Engine::take_arrivals(Clock::time_point now) {
  AdmissionQueue::Arrivals arrivals = queue_.take();
  for (SessionCommand& command : arrivals.commands) command.done(sessions_.run(command, now));
  for (Request& request : arrivals.requests) arrive(std::move(request));
}

void Engine::arrive(Request request) {
  Session* session = request.session.empty() ? nullptr : sessions_.find(request.session);
  std::vector<int32_t> input = input_of(request, session);
  Ending refused = refusal(request, session, input);
  if (!refused.message.empty()) {
    for (auto& stream : request.streams) stream->finish(refused);
    queue_.left(1);
    return;
  }
  if (session != nullptr) session->busy = true;
  const Accepted accepted{.prompt_tokens = static_cast<int64_t>(input.size()),
                          .session_position = session ? session->at.position : 0};
  for (auto& stream : request.streams) stream->accept(accepted);
  waiting_.push_back({std::move(request), std::move(input), session});
}

// What the state absorbs before the first token is sampled: what it still owes, BOS where it is
// fresh, the prompt.
std::vector<int32_t> Engine::input_of(const Request& request, const Session* session) const {
  std::vector<int32_t> input;
  const bool fresh = session == nullptr || (session->at.position == 0 && !session->at.pending);
  if (session != nullptr && session->at.pending) input.push_back(*session->at.pending);
  if (fresh && request.bos) input.push_back(*request.bos);
  input.insert(input.end(), request.prompt.begin(), request.prompt.end());
  return input;
}

// An ending with a message if the request cannot be served.
Ending Engine::refusal(const Request& request, const Session* session,
                       const std::vector<int32_t>& input) const {
  if (!request.session.empty() && session == nullptr) {
    return {.why = Finish::kNoSession,
            .message = fmt::format("there is no session \"{}\": open it first", request.session)};
  }
  if (session != nullptr && session->busy) {
    return {.why = Finish::kSessionBusy,
            .message = fmt::format("session \"{}\" is serving a request: wait for its end, cancel "
                                   "it, or fork the session",
                                   request.session)};
  }
  if (input.empty()) {
    return {.why = Finish::kInvalid,
            .message = session == nullptr || session->at.position == 0
                           ? "there is nothing to absorb: the prompt is empty"
                           : "there is nothing to absorb: the prompt is empty, and the session has "
                             "no pending token"};
  }
  if (static_cast<int>(request.streams.size()) > pool_.slots()) {
    return {.why = Finish::kInvalid,
            .message = fmt::format("n is {}, but there are {} slots", request.streams.size(),
                                   pool_.slots())};
  }
  return {};
}

// Ends what was cancelled, has run out of time or has met its stop string.
void Engine::end_unwanted(Clock::time_point now) {
  for (const auto& sequence : running_) obey(*sequence, now);
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    const Request& request = waiting.request;
    Finish why;
    if (request.streams.front()->wishes().cancelled) {
      why = Finish::kCancelled;
    } else if (request.deadline && *request.deadline <= now) {
      why = Finish::kDeadline;
    } else {
      return false;
    }
    give_up(waiting, why, now);
    return true;
  });
}

void Engine::obey(Sequence& sequence, Clock::time_point now) {
  const TokenStream::Wishes wishes = sequence.stream->wishes();
  sequence.acknowledged = wishes.acknowledged;
  if (wishes.stop_after && sequence.generated >= *wishes.stop_after) {
    end(sequence, Finish::kStopString);
  } else if (wishes.cancelled) {
    end(sequence, Finish::kCancelled);
  } else if (sequence.deadline && *sequence.deadline <= now) {
    end(sequence, Finish::kDeadline);
  }
}

// Lets a request go that has not begun.
void Engine::give_up(const Waiting& waiting, Finish why, Clock::time_point now) {
  Ending ending{.why = why, .queue_seconds = seconds_between(waiting.request.arrival, now)};
  if (waiting.session != nullptr) {
    waiting.session->busy = false;
    ending.session_position = waiting.session->at.position;
  }
  for (const auto& stream : waiting.request.streams) stream->finish(ending);
  queue_.left(1);
}

// Gives slots to those who wait, in the order they came: nobody overtakes a request that wants
// several slots at once. It need not wait for those of sessions that wait behind it.
void Engine::admit(Clock::time_point now) {
  while (!waiting_.empty()) {
    const Waiting& head = waiting_.front();
    const bool has_slot = head.session != nullptr && head.session->slot;
    if (!has_slot && !make_room(head.request.streams.size())) return;
    start(std::move(waiting_.front()), now);
    waiting_.pop_front();
  }
}

// Frees slots by moving sessions out of theirs. False if that is not enough.
bool Engine::make_room(size_t slots) {
  while (static_cast<size_t>(pool_.free_slots()) < slots) {
    if (!sessions_.evict_one()) return false;
  }
  return true;
}

void Engine::start(Waiting waiting, Clock::time_point now) {
  Request& request = waiting.request;
  Session* session = waiting.session;
  auto sequence = std::make_unique<Sequence>(
      Sequence{.sampling = request.sampling,
               .stream = request.streams.front(),
               .deadline = request.deadline,
               .wait_for_acknowledgement = request.wait_for_acknowledgement,
               .session = session,
               .slot = session ? sessions_.check_out(*session) : std::move(*pool_.acquire()),
               .input = std::move(waiting.input),
               .position = session ? session->at.position : 0,
               .history = session ? session->at.history : TokenHistory(),
               .arrival = request.arrival,
               .started = now});
  sequence->owed = session && session->at.pending ? 1 : 0;
  sequence->history.begin_request();
  sequence->prompt_tokens = static_cast<int64_t>(sequence->input.size());
  for (size_t c = 1; c < request.streams.size(); ++c) {
    sequence->siblings.push_back({request.streams[c], std::move(*pool_.acquire())});
  }
  queue_.left(1);
  metrics_.observe_queue(seconds_between(request.arrival, now));
  running_.push_back(std::move(sequence));
}

// Lays out the next step: who takes part, with which tokens, and which rows want logits.
bool Engine::gather() {
  pending_.clear();
  for (const auto& sequence : running_) pending_.push_back(pending_of(*sequence));
  const std::vector<int> plan = plan_step(bounds_, pending_, first_prompt_);

  batch_.clear(), tokens_.clear(), slots_.clear(), logit_rows_.clear();
  begin_.assign(1, 0);
  max_len_ = 0;
  for (size_t i = 0; i < running_.size(); ++i) {
    if (plan[i] == 0) continue;
    add_member(*running_[i], pending_[i], plan[i]);
  }
  first_prompt_ = next_first(pending_, first_prompt_);
  return !batch_.empty();
}

Pending Engine::pending_of(const Sequence& sequence) const {
  const bool waits = sequence.wait_for_acknowledgement && !sequence.prompt &&
                     sequence.acknowledged < sequence.generated;
  return {.tokens = waits ? 0 : sequence.left(),
          .prompt = sequence.prompt,
          .scored = sequence.prompt && sequence.sampling.prompt_logprobs >= 0};
}

void Engine::add_member(Sequence& sequence, const Pending& pending, int rows) {
  const int first = static_cast<int>(tokens_.size());
  const auto from = sequence.input.begin() + static_cast<ptrdiff_t>(sequence.absorbed);
  tokens_.insert(tokens_.end(), from, from + rows);
  begin_.push_back(static_cast<int32_t>(tokens_.size()));
  slots_.push_back(sequence.slot.id());
  max_len_ = std::max(max_len_, rows);

  const int first_logits = static_cast<int>(logit_rows_.size());
  const bool samples = rows == pending.tokens && sequence.sampling.max_tokens > 0;
  if (pending.scored) {
    for (int r = 0; r < rows; ++r) logit_rows_.push_back(first + r);
  } else if (samples) {
    logit_rows_.push_back(first + rows - 1);
  }
  batch_.push_back({&sequence, rows, first_logits});
}

void Engine::forward() {
  int32_t* device = device_input_.as<int32_t>();
  const auto place = [&](const std::vector<int32_t>& values) {
    backend_.upload(device, values.data(), values.size() * sizeof(int32_t), *stream_);
    return std::exchange(device, device + values.size());
  };
  const StepBatch batch{.seqs = {.num_seqs = static_cast<int>(batch_.size()),
                                 .rows = static_cast<int>(tokens_.size()),
                                 .max_len = max_len_,
                                 .begin = place(begin_),
                                 .slot = place(slots_)},
                        .tokens = place(tokens_),
                        .num_logits = static_cast<int>(logit_rows_.size()),
                        .logit_rows = place(logit_rows_)};
  model_.forward(batch, pool_, arena_, *stream_, device_logits_.as<float>());
  backend_.download(logits_.data(), device_logits_.data(),
                    logit_rows_.size() * static_cast<size_t>(model_.info().vocab) * sizeof(float),
                    *stream_);
  stream_->wait();
}

// Turns logits into tokens, hands them to the clients and makes them the next input.
void Engine::deliver() {
  for (const Member& member : batch_) {
    Sequence& sequence = *member.sequence;
    sequence.absorbed += static_cast<size_t>(member.rows);
    sequence.position += member.rows;
    if (!sequence.prompt) {
      sample(sequence, logits_row(member.first_logits));
      continue;
    }
    note_absorbed(sequence, member.rows);
    stats_.prompt_tokens += member.rows;
    metrics_.add_prompt_tokens(member.rows);
    const bool scored = sequence.sampling.prompt_logprobs >= 0;
    if (scored) score_prompt(sequence, member);
    if (sequence.left() > 0 || sequence.ended) continue;
    if (sequence.sampling.max_tokens == 0) {
      end(sequence, Finish::kLength);
      continue;
    }
    const float* last = logits_row(member.first_logits + (scored ? member.rows - 1 : 0));
    fork_choices(sequence, last);
    sample(sequence, last);
  }
  for (auto& sequence : forked_) running_.push_back(std::move(sequence));
  forked_.clear();
}

// A token that was pending is in the history since it was sampled.
void Engine::note_absorbed(Sequence& sequence, int rows) {
  const size_t from = std::max(sequence.absorbed - static_cast<size_t>(rows), sequence.owed);
  sequence.history.add_prompt(std::span(sequence.input).subspan(from, sequence.absorbed - from));
}

const float* Engine::logits_row(int row) const {
  return logits_.data() + static_cast<size_t>(row) * static_cast<size_t>(model_.info().vocab);
}

// A row of the prompt says how likely the token after it was.
void Engine::score_prompt(Sequence& sequence, const Member& member) {
  const auto vocab = static_cast<size_t>(model_.info().vocab);
  const size_t first = sequence.absorbed - static_cast<size_t>(member.rows);
  std::vector<SampledToken> scored;
  for (int r = 0; r < member.rows; ++r) {
    const size_t next = first + static_cast<size_t>(r) + 1;
    if (next == sequence.input.size()) break;
    scored.push_back(sampler_.score({logits_row(member.first_logits + r), vocab},
                                    sequence.input[next], sequence.sampling.prompt_logprobs));
    if (const char* error = scored.back().error) {
      return end(sequence, Finish::kInternal, -1, error);
    }
  }
  sequence.stream->push_prompt(std::move(scored));
}

// The prompt is absorbed once; the further choices go on from copies of its state.
void Engine::fork_choices(Sequence& sequence, const float* logits) {
  for (size_t c = 0; c < sequence.siblings.size(); ++c) {
    Sequence::Sibling& sibling = sequence.siblings[c];
    pool_.copy(sequence.slot, sibling.slot);
    auto choice = std::make_unique<Sequence>(
        Sequence{.sampling = sequence.sampling,
                 .stream = std::move(sibling.stream),
                 .deadline = sequence.deadline,
                 .wait_for_acknowledgement = sequence.wait_for_acknowledgement,
                 .slot = std::move(sibling.slot),
                 .position = sequence.position,
                 .history = sequence.history,
                 .prompt_tokens = sequence.prompt_tokens,
                 .arrival = sequence.arrival,
                 .started = sequence.started});
    choice->sampling.seed += c + 1;
    sample(*choice, logits);
    forked_.push_back(std::move(choice));
  }
  sequence.siblings.clear();
}

void Engine::sample(Sequence& sequence, const float* logits) {
  SampledToken token = sampler_.sample({logits, static_cast<size_t>(model_.info().vocab)},
                                       sequence.sampling, sequence.history, sequence.generated);
  if (token.error != nullptr) return end(sequence, Finish::kInternal, -1, token.error);
  if (sequence.generated == 0) {
    sequence.first_token = Clock::now();
    metrics_.observe_prefill(seconds_between(sequence.started, sequence.first_token));
  }
  const StopKind stop = sampler_.stop_kind(token.id, sequence.sampling, sequence.generated);
  sequence.history.add_generated(token.id);
  sequence.input.assign(1, token.id);
  sequence.absorbed = 0;
  sequence.prompt = false;
  ++sequence.generated;
  ++stats_.generated_tokens;
  metrics_.add_generated_tokens(1);

  if (stop == StopKind::kNone && sequence.generated < sequence.sampling.max_tokens) {
    sequence.stream->push(std::move(token));
    return;
  }
  sequence.ended = true;
  const Finish why = stop == StopKind::kEos      ? Finish::kEos
                     : stop == StopKind::kStopId ? Finish::kStopId
                                                 : Finish::kLength;
  Ending last = ending(sequence, why);
  if (stop != StopKind::kNone) last.stop_id = token.id;
  sequence.stream->push_last(std::move(token), std::move(last));
}

void Engine::end(Sequence& sequence, Finish why, int32_t stop_id, const char* message) {
  if (sequence.ended) return;
  sequence.ended = true;
  Ending last = ending(sequence, why);
  last.stop_id = stop_id;
  last.message = message;
  for (auto& sibling : sequence.siblings) sibling.stream->finish(last);
  sequence.stream->finish(std::move(last));
}

Ending Engine::ending(const Sequence& sequence, Finish why) const {
  const Clock::time_point now = Clock::now();
  Ending ending{.why = why,
                .prompt_tokens = sequence.prompt_tokens,
                .generated_tokens = sequence.generated,
                .session_position = sequence.position,
                .queue_seconds = seconds_between(sequence.arrival, sequence.started)};
  const Clock::time_point prefilled = sequence.generated > 0 ? sequence.first_token : now;
  ending.prefill_seconds = seconds_between(sequence.started, prefilled);
  ending.decode_seconds = seconds_between(prefilled, now);
  if (sequence.generated > 0) metrics_.observe_decode(ending.decode_seconds);
  return ending;
}

// Lets go of what has ended: slots back to the pool, or to the sessions they belong to.
void Engine::retire(Clock::time_point now) {
  std::erase_if(running_, [&](std::unique_ptr<Sequence>& sequence) {
    if (!sequence->ended) return false;
    if (Session* session = sequence->session) {
      session->at = {.position = sequence->position,
                     .pending = sequence->pending(),
                     .history = std::move(sequence->history),
                     .image = nullptr};
      sessions_.check_in(*session, std::move(sequence->slot), now);
    }
    return true;
  });
}

void Engine::report(Clock::time_point began, int rows) {
  const Clock::time_point now = Clock::now();
  if (rows > 0) {
    ++stats_.steps;
    metrics_.observe_step(seconds_between(began, now), rows);
  }
  int running = 0;
  for (const auto& sequence : running_) running += 1 + static_cast<int>(sequence->siblings.size());
  stats_.running = running;
  metrics_.set_requests(running, queue_.waiting());
  if (rows > 0 && now < next_housekeeping_) return;
  next_housekeeping_ = now + kHousekeeping;
  sessions_.expire(now);
  const SessionStore::Counts counts = sessions_.counts();
  const int idle = pool_.slots() - pool_.free_slots() - running;
  stats_.slots_free = pool_.free_slots();
  stats_.slots_idle = idle;
  stats_.sessions = counts.total;
  stats_.sessions_host = counts.in_host;
  stats_.host_bytes = counts.host_bytes;
  metrics_.set_slots(pool_.free_slots(), running, idle);
  metrics_.set_sessions(counts.in_slot, counts.in_host, counts.empty);
  metrics_.set_session_host_bytes(counts.host_bytes);
}

// When something will have to be done although nobody calls.
std::optional<Clock::time_point> Engine::next_event() const {
  std::optional<Clock::time_point> next = sessions_.next_expiry();
  const auto consider = [&](const std::optional<Clock::time_point>& when) {
    if (when && (!next || *when < *next)) next = when;
  };
  for (const Waiting& waiting : waiting_) consider(waiting.request.deadline);
  for (const auto& sequence : running_) consider(sequence->deadline);
  return next;
}

void Engine::end_everything() {
  queue_.close();  // nothing may come after the last take
  const Clock::time_point now = Clock::now();
  take_arrivals(now);
  for (const Waiting& waiting : waiting_) give_up(waiting, Finish::kDraining, now);
  waiting_.clear();
  for (const auto& sequence : running_) end(*sequence, Finish::kDraining);
  retire(now);
}

}  // namespace recurve
