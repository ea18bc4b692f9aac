#pragma once
#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/state/state_pool.h"
#include "server/startup/options.h"

namespace recurve {

class Backend;

// What steps need in addition to weights and states.
struct StepMemory {
  size_t buffers = 0;  // activations, logits, sampling
  size_t scratch = 0;  // of the kernels, which allocate it in the first steps
  size_t total() const { return buffers + scratch; }
};

// The memory that the server will allocate on the device, and on the host for sessions, in bytes.
// Computed before any of it is allocated.
struct MemoryPlan {
  // Of the other models of the process, as far as they are planned or at least: on the same device,
  // or for a model on the host all that is in host memory.
  size_t others = 0;
  size_t others_on_host = 0;  // for a model on a GPU
  size_t free = 0;            // on the device
  size_t host_free = 0;       // on the host
  bool on_host = true;        // the device computes in host memory
  size_t weights = 0;         // those that are copied
  // Weights that are used in place, in the mapped files: the system reads their pages when they are
  // used, and may drop them when memory is short. Not in the sums.
  size_t mapped = 0;
  size_t state = 0;  // of one slot; there is one slot more, for padding
  // Of models whose states grow: bytes of a page, and the most tokens of a session, by the config.
  size_t page = 0;  // 0: states do not grow
  int64_t most_tokens = 0;
  size_t pages = 0;     // bytes of all; set by plan_pages(), and the least there may be before
  size_t reserve = 0;   // for the driver: code, recorded steps
  size_t adapters = 0;  // their matrices, in the types in which they are used
  std::function<StepMemory(int slots)> steps;
  // On the host.
  size_t preempted = 0;         // states of requests that gave up their pages; set by plan_pages()
  size_t sessions = 0;          // and marks, at most; set by plan_sessions()
  size_t prefixes = 0;          // cached states of prompts, at most; set by plan_prefixes()
  size_t constraints = 0;       // cached compiled constraints, and masks
  size_t transfers = 0;         // states on their way to an object store and back
  size_t prefix_transfers = 0;  // the same of cached states of prompts
  size_t initial_states = 0;

  // Of sessions and prefixes together: prefixes use what sessions have not reserved.
  size_t budget() const { return std::max(sessions, prefixes); }
  size_t of_host() const {
    return preempted + budget() + constraints + transfers + prefix_transfers + initial_states;
  }
  size_t on_device_of_host() const { return on_host ? of_host() : 0; }
  size_t states(int slots) const { return (static_cast<size_t>(slots) + 1) * state; }
  size_t pages_for(int slots) const;  // bytes: of plan_pages(), or the least that slots need
  PageLimits page_limits() const;
  int64_t session_tokens() const;  // the most of a session, of models whose states grow
  size_t known(int slots) const;   // without `steps`
  // The sum; without `steps` if the rest does not fit already.
  size_t total(int slots) const;
  // The most slots that fit, at most `limit`; 0 if none fits.
  int most_slots(int limit) const;
  // "weights 13.62 + states (256 + 1) x 0.1252 = 32.19 + ... = 47.32 GiB, and 139.80 GiB are free"
  std::string arithmetic(int slots) const;
};

// The most bytes of a written state of a prompt that servers share: of one that grows, with so many
// pages, and the ids of a million tokens.
int64_t most_shared_prefix_bytes(size_t state, size_t page);

// The plan for a model on a backend. Reads the headers of the checkpoint, but no weights. Throws
// std::runtime_error, as loading does, if the checkpoint does not match its config, and if no
// weights can be mapped where the options want that.
MemoryPlan plan_memory(const Options& options, Backend& backend);

// Whether to map the weights that can be: as the options want, or where all weights would take more
// than half of the free memory.
bool choose_mapping(MapWeights wanted, size_t weights, size_t free);

// The slots of the options, or as many as fit: at most kMaxSlotsOfGpu, or kMaxSlotsOfHost in memory
// that other programs use too. Throws std::runtime_error with the arithmetic if they do not fit.
inline constexpr int kMaxSlotsOfGpu = 256, kMaxSlotsOfHost = 16;
int choose_slots(const Options& options, const MemoryPlan& plan);

// Sets the memory for pages: that of the options, or all that remains on a GPU, and on the host an
// eighth of what remains when mapped weights are in memory, at most what all slots can use. As much
// is planned on the host for states of preempted requests. Throws std::runtime_error with the
// arithmetic if it does not fit.
void plan_pages(const Options& options, int slots, MemoryPlan* plan);

// Sets the memory for sessions: that of the options, or half of what remains on the host, with
// mapped weights in memory. The other half is for what is not planned: requests, connections, other
// programs. Throws std::runtime_error with the arithmetic if the host does not have it.
void plan_sessions(const Options& options, int slots, MemoryPlan* plan);

// The same for cached states of prompts, after plan_sessions(), whose memory they use as far as
// sessions do not: that of the options, or a quarter of what remains, at most kMaxPrefixStates,
// more than sessions may reserve.
inline constexpr size_t kMaxPrefixStates = 4096;
void plan_prefixes(const Options& options, int slots, MemoryPlan* plan);

// Plans all models of a process, in order: each part for all of them before the next part.
// `models`: see options_of_models(). Throws std::runtime_error with the arithmetic of the model
// that does not fit.
struct PlannedModel {
  MemoryPlan plan;
  int slots = 0;
};
std::vector<PlannedModel> plan_models(const std::vector<Options>& models,
                                      const std::vector<std::unique_ptr<Backend>>& backends);

// Plans one more model, `models.back()`, next to those that serve, whose plans stay.
PlannedModel plan_further_model(const std::vector<Options>& models,
                                std::vector<PlannedModel> serving, Backend& backend);

}  // namespace recurve
