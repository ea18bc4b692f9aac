#include "server/part_options.h"

namespace recurve {

Checkpoint open_checkpoint(const Options& o) {
  if (o.random_weights) return Checkpoint::random_from(o.model, 1);
  return Checkpoint::open(o.model);
}

LoadOptions load_options(const Options& o) {
  return {.weights = WeightFormats::named(o.weights, o.head_weights), .state = o.state};
}

// As many rows as keep the device busy: a GPU's matrix units want more of them.
int choose_rows(const Options& o) {
  if (o.rows_per_step > 0) return o.rows_per_step;
  return o.on_gpu() ? 1024 : 256;
}

EngineOptions engine_options(const Options& o, int slots, size_t session_bytes) {
  return {.slots = slots,
          .rows_per_step = choose_rows(o),
          .step_seconds = o.tpot_ms / 1000,
          .ttft_seconds = o.ttft_ms / 1000,
          .sessions = {.host_bytes = static_cast<int64_t>(session_bytes),
                       .default_ttl_seconds = o.session_ttl}};
}

}  // namespace recurve
