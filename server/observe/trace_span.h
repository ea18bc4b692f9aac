#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/observe/trace_context.h"

namespace recurve {

// What happened to a call between two points of time, as OpenTelemetry has it.
struct TraceSpan {
  using Time = std::chrono::system_clock::time_point;
  using Value = std::variant<int64_t, double, std::string>;

  TraceId trace = {};
  SpanId id = {};
  SpanId parent = {};      // all zeros: none
  std::string state = {};  // tracestate, as the caller has sent it
  std::string name = {};
  bool of_server = false;  // the call as a whole, whose parent is its client's; else a part of it
  Time begin = {}, end = {};
  std::vector<std::pair<std::string, Value>> attributes = {};
  std::string error = {};  // why it failed, in a sentence; empty: it did not
};

}  // namespace recurve
