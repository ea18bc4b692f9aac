// What the line expects of those in it: how long each will wait, and who would wait too long.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/engine/waiting_line.h"

namespace recurve {
namespace {

// Of the time that a first token may take, as nothing takes exactly what was expected, and a step
// or two are under way already.
constexpr double kExpectedShare = 0.8;
// Of that time, what others may keep a request waiting in any case: one whose prompt alone takes
// too long is served too.
constexpr double kLeastShare = 0.25;

// The picture that running sequences give; what waits is still to be added.
Ahead ahead_of_all(const EngineLoad& load) {
  Ahead ahead{.hold_seconds = load.turnover.hold_seconds()};
  ahead.prompt_rate = load.prompt_rate();
  const double per_token = load.pace.step_seconds();
  for (const auto& sequence : load.running) {
    const double prompt = sequence->prompt && ahead.prompt_rate > 0
                              ? static_cast<double>(sequence->left()) / ahead.prompt_rate
                              : 0;
    const int64_t may = sequence->sampling.max_tokens - sequence->generated;
    const double seconds = prompt + load.turnover.expected_tokens(may) * per_token;
    ahead.releases.push_back(seconds);
  }
  return ahead;
}

// What goes before a prompt, in tokens and in slots: what came first; or, where it is far shorter
// than some of that, twice what is shorter still, as it has every second turn.
class Before {
 public:
  Before(int64_t place, int64_t tokens) : place_(place), tokens_(tokens) {}
  void add(int64_t place, int64_t tokens, int slots) {
    if (place < place_) first_.add(tokens, slots);
    if (tokens < tokens_) shorter_.add(tokens, slots);
    passes_ |= is_far_shorter(tokens_, tokens);
  }
  // Its own go by turns too while it passes.
  int64_t tokens() const {
    return passes_ ? std::min(first_.tokens, 2 * shorter_.tokens + tokens_) : first_.tokens;
  }
  int slots() const {
    return passes_ ? std::min(first_.slots, 2 * shorter_.slots + 1) : first_.slots;
  }

 private:
  struct Sum {
    int64_t tokens = 0;
    int slots = 0;
    void add(int64_t more_tokens, int more_slots) {
      tokens += more_tokens;
      slots += more_slots;
    }
  };
  const int64_t place_, tokens_;
  Sum first_, shorter_;
  bool passes_ = false;
};

}  // namespace

double EngineLoad::prompt_rate() const {
  const auto decodes = std::count_if(running.begin(), running.end(),
                                     [](const auto& sequence) { return !sequence->prompt; });
  return pace.prompt_rate(static_cast<int>(decodes));
}

// Seconds that others keep it waiting.
double WaitingLine::wait_of(const Waiting& waiting, const EngineLoad& load) const {
  Ahead ahead = ahead_of_all(load);
  Before in_line(waiting.place, waiting.tokens()), prompts = in_line;
  for (const auto& sequence : load.running) {
    if (sequence->prompt) prompts.add(sequence->place, sequence->left(), 0);
  }
  for (const Waiting& other : waiting_) {
    in_line.add(other.place, other.tokens(), other.slots());
    prompts.add(other.place, other.tokens(), 0);
  }
  ahead.prompt_tokens = static_cast<double>(prompts.tokens());
  const bool has_slot = waiting.session != nullptr && waiting.session->slot;
  const int in_use = static_cast<int>(ahead.releases.size());
  ahead.slots_missing = in_line.slots() + (has_slot ? 0 : 1) + in_use - pool_.slots();
  return expected_wait(std::move(ahead));
}

double WaitingLine::expected_seconds(const EngineLoad& load, Clock::time_point now) const {
  Waiting probe;
  probe.place = place_of(now, 0);
  probe.input.ids.resize(1);
  return wait_of(probe, load);
}

// An ending with a message if others would keep the request waiting for longer than they may.
Ending WaitingLine::overload(const Waiting& waiting, const EngineLoad& load,
                             Clock::time_point now) const {
  if (most_seconds_ == 0) return {};
  const double wait = wait_of(waiting, load);
  if (wait == 0) return {};
  const double rate = load.prompt_rate();
  const double own = rate > 0 ? static_cast<double>(waiting.tokens()) / rate : 0;
  const auto refuse = [&](double excess, const std::string& wanted) {
    return Ending{.why = Finish::kOverloaded,
                  .message = fmt::format("its first token would come after about {:.2g} s, and {}: "
                                         "try again later, or give it a higher priority",
                                         wait + own, wanted),
                  .retry_seconds = excess};
  };
  const double most = kExpectedShare * most_seconds_;
  const double late = wait - std::max(most - own, kLeastShare * most);
  if (late > 0) return refuse(late, fmt::format("is to be expected within {:.2g}", most));
  if (!waiting.request.deadline) return {};
  const double left = seconds_between(now, *waiting.request.deadline);
  if (wait + own <= left) return {};
  return refuse(wait + own - left, fmt::format("its deadline is in {:.2g}", left));
}

}  // namespace recurve
