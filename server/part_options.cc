#include "server/part_options.h"

namespace recurve {

Checkpoint open_checkpoint(const Options& o) {
  if (o.random_weights) return Checkpoint::random_from(o.model, 1);
  return Checkpoint::open(o.model);
}

LoadOptions load_options(const Options& o) { return {.weights = o.weights, .state = o.state}; }

EngineOptions engine_options(const Options& o, int slots) {
  return {.slots = slots,
          .rows_per_step = o.rows_per_step,
          .step_seconds = o.tpot_ms / 1000,
          .sessions = {.host_bytes = static_cast<int64_t>(o.session_memory),
                       .default_ttl_seconds = o.session_ttl}};
}

}  // namespace recurve
