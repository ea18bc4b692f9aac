#pragma once
#include <optional>
#include <string>

#include "clients/cpp/connection.h"
#include "clients/loadgen/load_run.h"
#include "clients/loadgen/sweep.h"
#include "clients/loadgen/workload.h"

namespace recurve::loadgen {

enum class ArrivalKind { kPoisson, kConstant, kTrace };

// The command line of recurve-loadgen. `recurve-loadgen --help` is its reference.
struct Options {
  std::string server = "127.0.0.1:50051";
  ClientTls tls;
  std::string key;
  Endpoint endpoint() const { return {server, tls, key}; }

  std::optional<int> streams;  // a closed loop of so many
  std::optional<double> rate;  // an open loop of so many conversations a second
  bool sweep = false;          // open loops: which rate holds the service level?
  ArrivalKind arrivals = ArrivalKind::kPoisson;
  double trace_speed = 1;
  std::optional<double> sweep_first_rate;  // absent: from what a closed loop reaches
  double sweep_precision = 0.05;
  int max_running = 10'000;

  WorkloadOptions workload;
  std::string trace_file, prompts_file;
  RunOptions run;

  std::string json_file, html_file;  // empty: none; "-": standard output
  std::string answers_file;          // empty: none
  bool quiet = false;                // no line while it runs
};

// Fills `options` and reads the files that they name. Returns an exit status if the process should
// end now (help, a bad flag), after printing the reason; -1 to go on.
int parse_options(int argc, char** argv, Options* options);

}  // namespace recurve::loadgen
