#pragma once
#include <atomic>
#include <functional>

#include "clients/loadgen/load_run.h"
#include "clients/loadgen/options.h"
#include "clients/loadgen/report/report.h"

namespace recurve::loadgen {

// What a caller sees of a test under way.
struct LoadTestEvents {
  std::function<void(const Report&)> on_begin;  // the server has answered; nothing has run yet
  OnProgress on_progress;
  std::function<void(const Trial&)> on_trial;  // one has ended
};

// Reads the server's properties, runs the options' load, and returns the report, without its date
// and command. Throws ClientError where the server cannot be asked, and std::invalid_argument for
// options that it cannot serve. Ends early, with what there is, once `interrupted` is set.
Report run_load_test(const Options& options, const LoadTestEvents& events,
                     const std::atomic<bool>& interrupted);

}  // namespace recurve::loadgen
