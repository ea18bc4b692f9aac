#pragma once
#include <string>

#include "clients/loadgen/report/report.h"

namespace recurve::loadgen {

// The report as one HTML page with charts, which needs no script and no other file.
std::string to_html(const Report& report);

}  // namespace recurve::loadgen
