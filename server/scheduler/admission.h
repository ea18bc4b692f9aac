#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "server/identity/identity.h"
#include "server/scheduler/forecast.h"

namespace recurve {

// Who gets the next slot, how long the others will wait for one, and who would wait too long. Pure:
// no clock, no requests, no locks.

// A request that waits for its slots.
struct Waiter {
  int64_t rank = 0;                      // who has the smaller one goes first, but for turns
  int64_t tokens = 0;                    // to be absorbed before its first token
  int slots = 1;                         // that its choices will take
  bool has_slot = false;                 // its session is in one
  TenantId tenant = 0;                   // whose it is: Identity::share()
  double weight = 1;                     // of the tenant, see TenantLimits
  int most_slots = TenantLimits::kNone;  // that the tenant may have
};

// A sequence that has its slot.
struct Holder {
  int64_t rank = 0;          // of its prompt
  bool prompt = false;       // it absorbs its prompt; otherwise it decodes
  int64_t tokens = 0;        // of the prompt, still to be absorbed
  int64_t may_generate = 0;  // tokens, at most
  TenantId tenant = 0;       // whose it is: Identity::share()
};

// Which of one tenant's line is next: the first; by turns the shortest, if that is far shorter. The
// line is in the order of places and not empty.
size_t next_in_turn(std::span<const Waiter> line, bool turn_of_shortest);

// What a request finds.
struct Situation {
  std::span<const Waiter> line;
  std::span<const Holder> holders;
  int slots = 0;            // that there are
  double prompt_rate = 0;   // prompt tokens a second, of all together; 0: not known
  double step_seconds = 0;  // between two tokens of a running stream
  const HoldTimeEstimator& holds;
};

// Seconds that others keep it waiting for its first token: its own tenant's as they stand in the
// line, another's as far as slots and prompts go to them by turns. It is not itself in the line.
double expected_wait(const Waiter& waiter, const Situation& situation);

// The bounds of what may be promised to a request.
struct AdmissionBounds {
  double most_seconds = 0;                      // to a first token; 0: however many
  std::optional<double> deadline_seconds = {};  // until its own deadline
};

struct Verdict {
  bool admitted = true;
  // Where it is not:
  double first_token_seconds = 0;  // when it would come
  double within_seconds = 0;       // when it would have to
  bool deadline = false;           // which is its own deadline, not the server's bound
  double retry_seconds = 0;        // when there may be room
};

// wait: as expected_wait() says it. Without other requests in the way none is refused, however
// long its own prompt takes.
Verdict judge(const Waiter& waiter, double wait, double prompt_rate, const AdmissionBounds& bounds);

}  // namespace recurve
