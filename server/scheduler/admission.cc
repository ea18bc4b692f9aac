#include "server/scheduler/admission.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "server/scheduler/scheduler.h"
#include "server/scheduler/shares.h"

namespace recurve {
namespace {

// Part of the bound that the forecast may use, as forecasts are inexact and a step or two are under
// way already.
constexpr double kExpectedShare = 0.8;
// Part of that time that a request may wait for others in any case, so that a prompt that alone
// takes too long is served too.
constexpr double kLeastShare = 0.25;

// The load of the sequences that have slots, without the line.
Ahead ahead_of_all(const Situation& s) {
  Ahead ahead{.hold_seconds = s.holds.hold_seconds(), .prompt_rate = s.prompt_rate};
  for (const Holder& holder : s.holders) {
    const double prompt =
        holder.prompt && s.prompt_rate > 0 ? static_cast<double>(holder.tokens) / s.prompt_rate : 0;
    const double decode = s.holds.expected_tokens(holder.may_generate) * s.step_seconds;
    ahead.releases.push_back(prompt + decode);
  }
  return ahead;
}

// Tokens and slots that precede a prompt: those of smaller rank. A prompt that is far shorter than
// another one gets every second turn, so at most twice those of shorter prompts precede it.
class Before {
 public:
  Before(int64_t rank, int64_t tokens) : rank_(rank), tokens_(tokens) {}
  void add(int64_t rank, int64_t tokens, int slots) {
    if (rank < rank_) first_.add(tokens, slots);
    if (tokens < tokens_) shorter_.add(tokens, slots);
    passes_ |= is_far_shorter(tokens_, tokens);
  }
  // Its own tokens alternate with others' too.
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
  const int64_t rank_, tokens_;
  Sum first_, shorter_;
  bool passes_ = false;
};

// The load of another tenant.
struct Rival {
  int64_t tokens = 0;      // of its prompts
  int held = 0, line = 0;  // slots
  double weight = 1;
  int most_slots = TenantLimits::kNone;

  // Slots that it gets before the waiter gets its `th` one.
  int slots_before(double weight_of_waiter, int th) const {
    const double fair = th * weight / weight_of_waiter;
    const int room = std::max(0, most_slots - held);
    const double wanted = std::max(0.0, std::floor(fair) - held);
    return static_cast<int>(std::min<double>({wanted, line * 1.0, room * 1.0}));
  }
};

// Each other share of the waiter's group, and each other group. Running prompts of the waiter's
// group are absorbed by rank and not counted here.
std::map<TenantId, Rival> rivals_of(const Waiter& waiter, const Situation& s) {
  const auto rival_of = [&](TenantId tenant) {
    return same_group(tenant, waiter.tenant) ? tenant : group_of(tenant);
  };
  std::map<TenantId, Rival> rivals;
  for (const Holder& holder : s.holders) {
    if (holder.tenant == waiter.tenant) continue;
    Rival& rival = rivals[rival_of(holder.tenant)];
    ++rival.held;
    rival.weight = holder.weight;
    if (holder.prompt && !same_group(holder.tenant, waiter.tenant)) rival.tokens += holder.tokens;
  }
  for (const Waiter& other : s.line) {
    if (other.tenant == waiter.tenant) continue;
    Rival& rival = rivals[rival_of(other.tenant)];
    rival.line += other.slots;
    rival.tokens += other.tokens;
    rival.weight = other.weight;
    rival.most_slots = other.most_slots;
  }
  return rivals;
}

// Whether another group would still have more slots for its weight with those of the waiter.
bool may_preempt(const Waiter& waiter, int slots, const std::map<TenantId, Rival>& rivals) {
  if (slots > waiter.most_slots) return false;
  const double own = slots / waiter.weight;
  return std::ranges::any_of(rivals, [&](const auto& one) {
    const auto& [tenant, rival] = one;
    return !same_group(tenant, waiter.tenant) && rival.held / rival.weight > own;
  });
}

}  // namespace

size_t next_in_turn(std::span<const Waiter> line, bool turn_of_shortest) {
  if (!turn_of_shortest) return 0;
  const auto shortest = std::ranges::min_element(line, {}, &Waiter::tokens);
  if (!is_far_shorter(shortest->tokens, line.front().tokens)) return 0;
  return static_cast<size_t>(shortest - line.begin());
}

double expected_wait(const Waiter& waiter, const Situation& s) {
  Ahead ahead = ahead_of_all(s);
  Before in_line(waiter.rank, waiter.tokens), prompts = in_line;
  int held = 0;
  for (const Holder& holder : s.holders) {
    if (holder.tenant == waiter.tenant) ++held;
    if (!holder.prompt || !same_group(holder.tenant, waiter.tenant)) continue;
    prompts.add(holder.rank, holder.tokens, 0);
  }
  for (const Waiter& other : s.line) {
    if (other.tenant != waiter.tenant) continue;
    in_line.add(other.rank, other.tokens, other.slots);
    prompts.add(other.rank, other.tokens, 0);
  }
  const int64_t own_tokens = prompts.tokens();
  int64_t tokens = own_tokens;
  int slots = in_line.slots();
  const std::map<TenantId, Rival> rivals = rivals_of(waiter, s);
  for (const auto& [tenant, rival] : rivals) {
    tokens += std::min(rival.tokens, own_tokens + waiter.tokens);
    slots += rival.slots_before(waiter.weight, held + in_line.slots() + 1);
  }
  ahead.prompt_tokens = static_cast<double>(tokens);
  const int in_use = static_cast<int>(ahead.releases.size());
  const bool has_others = held > 0 || in_line.slots() > 0;
  const int reserved = has_others ? slots_for_new_tenants(waiter.tenant, s.slots) : 0;
  ahead.slots_missing = slots + (waiter.has_slot ? 0 : 1) + in_use - (s.slots - reserved);
  if (s.preempts && may_preempt(waiter, held + in_line.slots() + 1, rivals)) {
    ahead.slots_missing = 0;
  }
  return expected_wait(std::move(ahead));
}

bool BurstWatch::observe(double wait, double now) {
  if (wait == 0) return false;
  if (!waited_ || now - *waited_ > kQuietSeconds) began_ = now;
  waited_ = now;
  return now - *began_ <= kBurstSeconds;
}

Verdict judge(const Waiter& waiter, double wait, double prompt_rate,
              const AdmissionBounds& bounds) {
  const FirstTokenBound& server = bounds.server;
  if (server.seconds == 0) return {};
  const double own = prompt_rate > 0 ? static_cast<double>(waiter.tokens) / prompt_rate : 0;
  const double alone = own > server.seconds ? server.times_alone * own : 0;
  const double burst = bounds.burst ? server.burst_seconds : 0;
  const double within = std::max({server.seconds, alone, burst});
  const Verdict admitted{.within_seconds = within};
  if (wait == 0) return admitted;
  Verdict refused{.admitted = false, .within_seconds = within, .first_token_seconds = wait + own};
  const double most = kExpectedShare * within;
  const double late = wait - std::max(most - own, kLeastShare * most);
  if (late > 0) {
    refused.first_token_seconds /= kExpectedShare;
    refused.retry_seconds = late;
    return refused;
  }
  if (!bounds.deadline_seconds || wait + own <= *bounds.deadline_seconds) return admitted;
  refused.within_seconds = *bounds.deadline_seconds;
  refused.deadline = true;
  refused.retry_seconds = wait + own - *bounds.deadline_seconds;
  return refused;
}

}  // namespace recurve
