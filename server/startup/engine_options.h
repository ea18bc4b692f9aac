#pragma once
#include "model/load_model.h"
#include "server/engine/engine.h"
#include "server/startup/options.h"

namespace recurve {

// The options of the parts, from those of the command line.
Checkpoint open_checkpoint(const Options& options);
LoadOptions load_options(const Options& options);
StateStore::Options state_store_options(const Options& options);
int choose_rows(const Options& options);  // the most of a step
// session_bytes, prefix_bytes: host memory for sessions and marks, and for cached prefixes. pages:
// of states that grow.
EngineOptions engine_options(const Options& options, int slots, size_t session_bytes,
                             size_t prefix_bytes = 0, PageLimits pages = {});

}  // namespace recurve
