#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "server/request/engine_stats.h"
#include "server/startup/loaded_model.h"

namespace recurve {

struct Listening {
  std::string frontend;  // "grpc", "http", "metrics", "admin"
  std::string address;   // of its flag
  int port = 0;          // the one bound; 0: a local socket
};

// Aligned lines for the operator: what the server uses for a model. `stats`: of the engine, after
// it has read the folder of states.
std::string startup_table(const Options& options, const LoadedModel& loaded, const Backend& backend,
                          const EngineStats& stats);
// And where it listens.
std::string listening_table(const Options& options, const std::vector<Listening>& listening);

// "1.5 GiB"
std::string human_bytes(double bytes);

}  // namespace recurve
