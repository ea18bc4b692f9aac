#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "server/identity/identity.h"
#include "server/scheduler/forecast.h"

namespace recurve {

// Which request gets the next slot, how long the others wait, and which would wait for too long.
// Pure functions: no clock, no locks.

// A waiting request.
struct Waiter {
  int64_t rank = 0;                      // the smallest is first, except for turns of short prompts
  int64_t tokens = 0;                    // to absorb before its first token
  int slots = 1;                         // for all of its choices
  bool has_slot = false;                 // its session's state is in one
  TenantId tenant = 0;                   // Identity::share()
  double weight = 1;                     // of the tenant, see TenantLimits
  int most_slots = TenantLimits::kNone;  // limit of the tenant
};

// A sequence that has its slot.
struct Holder {
  int64_t rank = 0;          // of its prompt
  bool prompt = false;       // absorbs its prompt; false: decodes
  int64_t tokens = 0;        // of the prompt, not yet absorbed
  int64_t may_generate = 0;  // remaining tokens, at most
  TenantId tenant = 0;       // Identity::share()
  double weight = 1;         // of the tenant
};

// The index of the next request of one tenant's line: the first, or in a turn of the shortest the
// shortest prompt, if it is far shorter. The line is ordered by rank and not empty.
size_t next_in_turn(std::span<const Waiter> line, bool turn_of_shortest);

// The load that a new request meets.
struct Situation {
  std::span<const Waiter> line;
  std::span<const Holder> holders;
  int slots = 0;            // of the server
  double prompt_rate = 0;   // prompt tokens a second, of all sequences; 0: unknown
  double step_seconds = 0;  // between two tokens of a sequence
  const HoldTimeEstimator& holds;
  bool preempts = false;  // a request gets the slot of a tenant with more, see choose_victim_for()
};

// Seconds that the request waits because of others: requests of its tenant by rank, those of other
// tenants by their share of slots and prompt rows. The request itself is not in the line.
double expected_wait(const Waiter& waiter, const Situation& situation);

// The server's bound of the time to the first token.
struct FirstTokenBound {
  double seconds = 0;        // 0: none
  double times_alone = 0;    // for a request that alone takes longer: this multiple of its time
  double burst_seconds = 0;  // at least, for a request of a burst, see BurstWatch
};

// Keeps goodput at twice the load that the server holds. Some long prompts, and a burst of requests
// that an idle server receives, are no overload.
inline constexpr FirstTokenBound kAutomaticFirstTokenBound{
    .seconds = 0.5, .times_alone = 4, .burst_seconds = 10};

// Tells a burst from overload: a burst is the first second in which requests wait for others, after
// ten seconds in which none did.
class BurstWatch {
 public:
  // A request arrives that waits for `wait` seconds. now: seconds of any clock. True: it is of a
  // burst.
  bool observe(double wait, double now);

 private:
  static constexpr double kBurstSeconds = 1, kQuietSeconds = 10;
  std::optional<double> began_ = {}, waited_ = {};  // the last burst; the last request that waited
};

// Bounds of the time to the first token.
struct AdmissionBounds {
  FirstTokenBound server = {};
  bool burst = false;                           // the request is of a burst
  std::optional<double> deadline_seconds = {};  // of the request
};

struct Verdict {
  bool admitted = true;
  double within_seconds = 0;  // allowed; 0: any time
  // Set if not admitted:
  // Expected; at the server's bound, with what forecasts may be wrong by.
  double first_token_seconds = 0;
  bool deadline = false;     // the request's deadline is exceeded, not the server's bound
  double retry_seconds = 0;  // after which to try again
};

// wait: expected_wait(). A request that waits for no others is admitted, however long its prompt
// is.
Verdict judge(const Waiter& waiter, double wait, double prompt_rate, const AdmissionBounds& bounds);

}  // namespace recurve
