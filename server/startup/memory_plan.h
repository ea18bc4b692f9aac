#pragma once
#include <cstddef>
#include <functional>
#include <string>

#include "server/startup/options.h"

namespace recurve {

class Backend;

// What the server will take of a device's memory, and of the host's for sessions, in bytes, known
// before any of it is taken.
struct MemoryPlan {
  size_t free = 0;       // now, on the device
  size_t host_free = 0;  // and on the host
  bool on_host = true;   // the two are one
  size_t weights = 0;
  size_t state = 0;    // of a slot; one more than there are slots is kept, for padding
  size_t reserve = 0;  // for what a driver takes for itself: code, recorded steps
  // Everything else, with so many slots: activations, logits, sampling.
  std::function<size_t(int slots)> steps;
  size_t sessions = 0;  // of the host's, set by plan_sessions(): for sessions and marks

  size_t prefixes = 0;  // likewise, by plan_prefixes(): for states that prompts leave

  // Likewise: compiled constraints of answers that are kept for whoever asks again, and masks.
  size_t constraints = 0;

  size_t sessions_here() const { return on_host ? sessions + prefixes + constraints : 0; }
  size_t states(int slots) const { return (static_cast<size_t>(slots) + 1) * state; }
  // The sum, without `steps` where all else is too much already.
  size_t total(int slots) const;
  // The most slots that fit, at most `limit`; 0 if not even one does.
  int most_slots(int limit) const;
  // "weights 13.62 + states (256 + 1) x 0.1252 = 32.19 + ... = 47.32 GiB, and 139.80 GiB are free"
  std::string arithmetic(int slots) const;
};

// The plan for the model of the options on the backend. Reads the checkpoint's headers, but no
// weights. Throws std::runtime_error, as loading would, if the model does not fit its config.
MemoryPlan plan_memory(const Options& options, Backend& backend);

// The slots that the options ask for; or as many as fit, to kMostAutomatic on a GPU and to
// kFewAutomatic elsewhere, where memory is shared with all else. Throws std::runtime_error with the
// arithmetic if they do not fit.
inline constexpr int kMostAutomatic = 256, kFewAutomatic = 16;
int choose_slots(const Options& options, const MemoryPlan& plan);

// Sets the plan's memory for sessions: what the options ask for, or half of what all else, with so
// many slots, leaves of the host. The other half is for what no plan knows: requests, connections,
// other programs. Throws std::runtime_error with the arithmetic if the host has less than is asked
// for.
void plan_sessions(const Options& options, int slots, MemoryPlan* plan);

// Sets the plan's memory for states that prompts leave, once that for sessions is set: what the
// options ask for, or a quarter of what is left then, kMostPrefixStates at most. Throws as
// plan_sessions() does.
inline constexpr size_t kMostPrefixStates = 4096;
void plan_prefixes(const Options& options, int slots, MemoryPlan* plan);

}  // namespace recurve
