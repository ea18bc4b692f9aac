#pragma once
#include <cstdint>
#include <string>

#include "clients/loadgen/workload.h"

namespace recurve {
class Client;
}

namespace recurve::loadgen {

// Properties of the server, for the head of a report.
struct ServerFacts {
  std::string address, version, model, family, weight_type, backend;
  int64_t parameters = 0, weight_bytes = 0, state_bytes = 0;
  int slots = 0, max_queue = 0;
  int max_choices = 0;
  WorkloadLimits limits;
};

// model: its name; empty: the first. Throws ClientError.
ServerFacts ask_server(Client& client, const std::string& model);

// "xlstm-books (xlstm, 7.5 M parameters in int8), 16 slots, queue of 256; cpu, 2 threads"
std::string describe(const ServerFacts& server);

}  // namespace recurve::loadgen
