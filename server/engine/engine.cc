#include "server/engine/engine.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace recurve {
namespace {

StepBounds bounds_for(const EngineOptions& options, int chunk) {
  const int least = options.slots + chunk;
  const int rows = std::max(options.rows_per_step, least);
  return {.rows = rows, .logits = least, .chunk = chunk, .prompt_rows = rows};
}

// Sessions are looked over for idle ones, and their gauges set, this often while there is work.
constexpr auto kHousekeeping = std::chrono::milliseconds(100);

}  // namespace

Engine::Engine(const Model& model, Backend& backend, const SamplingVocab& vocab,
               AdmissionQueue& queue, EngineStats& stats, Metrics& metrics,
               const EngineOptions& options)
    : queue_(queue),
      stats_(stats),
      metrics_(metrics),
      bounds_(bounds_for(options, model.info().chunk)),
      stream_(backend.make_stream()),
      pool_(backend, model.state_layout(), options.slots, *stream_),
      sessions_(pool_, options.sessions),
      waiting_(queue, sessions_, pool_, metrics),
      batch_(model, backend, *stream_, bounds_, options.slots),
      delivery_(vocab, pool_, stats, metrics),
      pace_(bounds_.rows, options.step_seconds) {
  stats_.slots = options.slots;
  report(Clock::now());
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
  waiting_.take_arrivals(began);
  end_unwanted(began);
  admit(began);
  gather(began);
  if (!batch_.empty()) {
    batch_.forward(pool_);
    deliver();
    retire(Clock::now());
  }
  report(began);
  return !batch_.empty();
}

// Ends what was cancelled, has run out of time or has met its stop string.
void Engine::end_unwanted(Clock::time_point now) {
  waiting_.drop_unwanted(now);
  for (const auto& sequence : running_) sequence->obey(now);
  retire(now);
}

void Engine::admit(Clock::time_point now) {
  while (auto sequence = waiting_.admit_next(now)) running_.push_back(std::move(sequence));
}

// Lays out the step: who takes part, with which tokens.
void Engine::gather(Clock::time_point now) {
  pending_.clear();
  shape_ = {};
  for (const auto& sequence : running_) {
    sequence->refill(bounds_.chunk, now);
    pending_.push_back(sequence->ready(bounds_.chunk));
    if (!pending_.back().prompt && pending_.back().tokens > 0) ++shape_.decodes;
  }
  StepBounds bounds = bounds_;
  bounds.prompt_rows = pace_.prompt_rows(shape_.decodes);
  const std::vector<int> rows = plan_step(bounds, pending_, turn_);
  shape_.prompt_rows = std::accumulate(rows.begin(), rows.end(), 0) - shape_.decodes;
  batch_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] > 0) batch_.add(*running_[i], rows[i]);
  }
}

void Engine::deliver() {
  delivery_.deliver(batch_, forked_);
  for (auto& sequence : forked_) running_.push_back(std::move(sequence));
  forked_.clear();
}

// Lets go of what has ended: slots back to the pool, or to the sessions they belong to.
void Engine::retire(Clock::time_point now) {
  std::erase_if(running_, [&](std::unique_ptr<Sequence>& sequence) {
    if (!sequence->ended) return false;
    if (sequence->generated > 0) {
      metrics_.observe_decode(seconds_between(sequence->first_token, now));
    }
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

void Engine::report(Clock::time_point began) {
  const Clock::time_point now = Clock::now();
  if (!batch_.empty()) {
    ++stats_.steps;
    metrics_.observe_step(seconds_between(began, now), batch_.rows());
    pace_.observe(shape_, seconds_between(began, now));
  }
  int running = 0;
  for (const auto& sequence : running_) running += 1 + static_cast<int>(sequence->siblings.size());
  stats_.running = running;
  metrics_.set_requests(running, queue_.waiting());
  if (!batch_.empty() && now < next_housekeeping_) return;
  next_housekeeping_ = now + kHousekeeping;
  sessions_.expire(now);
  report_slots(running);
}

void Engine::report_slots(int running) {
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
  consider(waiting_.next_deadline());
  for (const auto& sequence : running_) {
    consider(sequence->deadline);
    consider(sequence->patience_ends());
  }
  return next;
}

void Engine::end_everything() {
  queue_.close();  // nothing may come after the last take
  const Clock::time_point now = Clock::now();
  waiting_.take_arrivals(now);
  waiting_.drop_all(Finish::kDraining, now);
  for (const auto& sequence : running_) sequence->end(Finish::kDraining);
  retire(now);
  batch_.clear();
  report(now);
}

}  // namespace recurve
