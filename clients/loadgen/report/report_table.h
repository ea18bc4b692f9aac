#pragma once
#include <string>

#include "clients/loadgen/report/report.h"

namespace recurve::loadgen {

// What was asked and of whom; printed before the runs.
std::string head_text(const Report& report);
// The figures of one run.
std::string trial_text(const Trial& trial, const RunOptions& options);
// One line a run, and the rate that was found.
std::string sweep_text(const Report& report);
// One line, while it runs.
std::string progress_text(const RunProgress& progress);

}  // namespace recurve::loadgen
