#pragma once
#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "clients/cpp/connection.h"
#include "clients/loadgen/arrivals.h"
#include "clients/loadgen/recorder.h"
#include "clients/loadgen/workload.h"
#include "recurve/v1/sessions.pb.h"

namespace recurve::loadgen {

// So many users, each of whom asks again as soon as the answer before is there (and thought about).
struct ClosedLoop {
  int streams = 8;
};

// Conversations that begin when they are due, however many are under way.
struct OpenLoop {
  Arrivals arrivals;
  int max_running = 10'000;  // beyond that they are not sent, and count as failed
};

// A whole answer to a turn. Called by any thread; empty: not called.
struct Answered {
  std::string session;  // empty: none
  uint64_t conversation;
  size_t turn;
  std::vector<std::vector<int32_t>> ids;  // of each fork
};
using OnAnswer = std::function<void(const Answered&)>;

struct RunOptions {
  double warmup_seconds = 3;  // of load before the measured window
  double measured_seconds = 20;
  // The load goes on behind the window until all measured requests have ended, for so long at most.
  double cooldown_seconds = 10;
  std::string model = {};  // its name; empty: the server's first
  double temperature = 1;
  std::optional<double> timeout_seconds = {};  // deadline of each request
  // Of sessions. LOCAL, REMOTE: each conversation has one, and a turn whose answer was lost or that
  // was refused is repeated with its id until the run ends.
  v1::Durability durability = v1::DURABILITY_NONE;
  bool leave_open = false;  // sessions
  OnAnswer on_answer = {};
  ServiceLevel level;
  int workers = 1;  // threads that handle answers, each with its own connection
};

// Whether the client could do what it measured: else its own delay is in the figures.
struct ClientCost {
  double cpu_cores = 0;       // used by the whole process, on average
  double busiest_worker = 0;  // share of the time that the busiest thread used a core
  Histogram timer_lateness;   // of a timer that rings every few ms: the machine's own stalls
  Histogram handling_delay;   // from the arrival of a message until it is handled
};

struct RunResult {
  Records records;
  Window window;       // as planned, or cut where the run was interrupted
  double seconds = 0;  // of the whole run
  ClientCost client;
  bool interrupted = false;
};

// What is shown while it runs.
struct RunProgress {
  double now = 0;
  RunOptions options;
  Progress seen;
  int64_t running = 0;  // requests under way
};

// Loads the server at `address` and returns what was seen. `on_progress` is called about ten times
// a second. Ends early, with what there is, once `interrupted` is set.
using OnProgress = std::function<void(const RunProgress&)>;
RunResult run_load(const Endpoint& endpoint, const Workload& workload,
                   const std::variant<ClosedLoop, OpenLoop>& loop, const RunOptions& options,
                   const OnProgress& on_progress, const std::atomic<bool>& interrupted);

}  // namespace recurve::loadgen
