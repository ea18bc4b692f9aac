#include "server/startup/engine_options.h"

#include <filesystem>

namespace recurve {

Checkpoint open_checkpoint(const Options& o) {
  if (o.random_weights) return Checkpoint::random_from(o.model, 1);
  return Checkpoint::open(o.model);
}

LoadOptions load_options(const Options& o) {
  return {.weights = WeightFormats::named(o.weights, o.head_weights), .state = o.state, .kv = o.kv};
}

// Includes the present files, so that a restart has the same limit.
StateStore::Options state_store_options(const Options& o) {
  if (o.state_disk != kAutomatic) return {.most_bytes = o.state_disk};
  std::error_code error;
  uint64_t present = 0;
  for (const auto& entry : std::filesystem::directory_iterator(o.state_dir, error)) {
    if (entry.is_regular_file(error)) present += entry.file_size(error);
  }
  std::filesystem::path folder = o.state_dir;
  while (!exists(folder, error) && folder.has_parent_path()) folder = folder.parent_path();
  const auto space = std::filesystem::space(folder.empty() ? "." : folder, error);
  return {.most_bytes = present + (error ? 0 : space.available / 2 / o.sharing.count)};
}

// Enough rows to keep the device busy: matrix units of a GPU need more of them.
int choose_rows(const Options& o) {
  if (o.rows_per_step > 0) return o.rows_per_step;
  return o.on_gpu() ? 1024 : 256;
}

EngineOptions engine_options(const Options& o, int slots, size_t session_bytes, size_t prefix_bytes,
                             PageLimits pages) {
  return {.slots = slots,
          .rows_per_step = choose_rows(o),
          .step_seconds = o.tpot_ms / 1000,
          .first_token = o.ttft_ms == kAutomaticTtft ? kAutomaticFirstTokenBound
                                                     : FirstTokenBound{.seconds = o.ttft_ms / 1000},
          .pages = pages,
          .sessions = {.host_bytes = static_cast<int64_t>(session_bytes),
                       .default_ttl_seconds = o.session_ttl},
          .prefix = {.bytes = static_cast<int64_t>(prefix_bytes), .shared = o.prefix_shared}};
}

}  // namespace recurve
