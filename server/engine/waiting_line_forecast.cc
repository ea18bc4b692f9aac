// WaitingLine: how long requests wait, and which would wait for too long.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "server/engine/waiting_line.h"

namespace recurve {
namespace {

std::vector<Holder> holders_of(const EngineLoad& load) {
  std::vector<Holder> holders;
  holders.reserve(load.running.size());
  for (const auto& sequence : load.running) {
    holders.push_back({.rank = sequence->prompt.rank,
                       .prompt = sequence->in_prompt(),
                       .tokens = sequence->prompt.remaining(),
                       .may_generate = std::max<int64_t>(
                           sequence->request.forecast_tokens() - sequence->decode.generated, 0),
                       .tenant = sequence->request.caller.share(),
                       .weight = sequence->request.caller.limits.weight});
  }
  return holders;
}

}  // namespace

double EngineLoad::prompt_rate(bool shared) const {
  const auto decodes = std::count_if(running.begin(), running.end(),
                                     [](const auto& sequence) { return !sequence->in_prompt(); });
  return pace.prompt_rate(static_cast<int>(decodes), shared);
}

std::vector<Waiter> WaitingLine::waiters() const {
  std::vector<Waiter> line;
  line.reserve(waiting_.size());
  for (const auto& waiting : waiting_) line.push_back(waiter_of(*waiting));
  return line;
}

// Seconds that it waits because of other requests.
double WaitingLine::wait_of(const Waiter& waiter, const EngineLoad& load,
                            Clock::time_point now) const {
  const std::vector<Waiter> line = waiters();
  const std::vector<Holder> holders = holders_of(load);
  return expected_wait(waiter, {.line = line,
                                .holders = holders,
                                .slots = pool_.slots(),
                                .prompt_rate = load.prompt_rate(is_shared(now)),
                                .step_seconds = load.pace.step_seconds(),
                                .holds = load.holds,
                                .preempts = pool_.layout().grows()});
}

double WaitingLine::expected_seconds(const EngineLoad& load, Clock::time_point now) const {
  return wait_of({.rank = rank_of(now, 0), .tokens = 1}, load, now);
}

// With a message if the request would wait for too long because of others.
StreamEnd WaitingLine::overload(Sequence& waiting, const EngineLoad& load, Clock::time_point now) {
  if (bound_.seconds == 0) return {};
  const Waiter waiter = waiter_of(waiting);
  const double wait = wait_of(waiter, load, now);
  AdmissionBounds bounds{.server = bound_, .burst = burst_.observe(wait, seconds_of(now))};
  if (const auto& deadline = waiting.request.deadline) {
    bounds.deadline_seconds = seconds_between(now, *deadline);
  }
  const Verdict verdict = judge(waiter, wait, load.prompt_rate(is_shared(now)), bounds);
  waiting.first_token_within = verdict.within_seconds;
  if (verdict.admitted) return {};
  return {.reason = EndReason::kOverloaded,
          .message = fmt::format("overloaded: the first token would take about {:.2g} s, the {} is "
                                 "{:.2g} s: try again later, or set a higher priority",
                                 verdict.first_token_seconds,
                                 verdict.deadline ? "deadline" : "limit", verdict.within_seconds),
          .retry_seconds = verdict.retry_seconds};
}

}  // namespace recurve
