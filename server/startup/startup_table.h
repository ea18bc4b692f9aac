#pragma once
#include <cstdint>
#include <string>

#include "kernels/backend.h"
#include "server/request/engine_stats.h"
#include "server/startup/loaded_model.h"

namespace recurve {

// Aligned lines for the operator: what the server uses. `stats`: of the engine, after it has read
// the folder of states.
std::string startup_table(const Options& options, const LoadedModel& loaded, const Backend& backend,
                          const EngineStats& stats, int port);

// Resident memory of the process in bytes, from /proc/self/statm; 0 if it does not exist.
int64_t resident_bytes();

// "1.5 GiB"
std::string human_bytes(double bytes);

}  // namespace recurve
