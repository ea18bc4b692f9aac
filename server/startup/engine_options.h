#pragma once
#include "model/load_model.h"
#include "server/engine/engine.h"
#include "server/startup/options.h"

namespace recurve {

// What the command line says to the parts that it is made of.
Checkpoint open_checkpoint(const Options& options);
LoadOptions load_options(const Options& options);
StateStore::Options state_store_options(const Options& options);
int choose_rows(const Options& options);  // of a step, at most
// session_bytes, prefix_bytes: of host memory for sessions and marks, and for prompts' states.
EngineOptions engine_options(const Options& options, int slots, size_t session_bytes,
                             size_t prefix_bytes = 0);

}  // namespace recurve
