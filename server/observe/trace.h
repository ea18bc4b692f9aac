#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace recurve {

// The position of a call in its client's trace: W3C Trace Context,
// https://www.w3.org/TR/trace-context/. Neither id is all zeros.
using TraceId = std::array<uint8_t, 16>;
using SpanId = std::array<uint8_t, 8>;
struct TraceContext {
  TraceId trace = {};
  SpanId span = {};      // the client's, the parent of the call's
  bool sampled = false;  // the client records its spans
};

// Parses the header traceparent of version 00, or of a later one that begins with the same fields.
std::optional<TraceContext> parse_traceparent(std::string_view header);

// Lower-case hexadecimal digits, two a byte.
std::string to_hex(const TraceId& id);
std::string to_hex(const SpanId& id);

// Not for secrets.
uint64_t random_number();
TraceId make_trace_id();
SpanId make_span_id();

// A span of OpenTelemetry.
struct TraceSpan {
  using Time = std::chrono::system_clock::time_point;
  using Value = std::variant<int64_t, double, std::string>;

  TraceId trace = {};
  SpanId id = {};
  SpanId parent = {};      // all zeros: none
  std::string state = {};  // tracestate, as the client sent it
  std::string name = {};
  bool of_server = false;  // the whole call, whose parent is the client's span; else a part of it
  Time begin = {}, end = {};
  std::vector<std::pair<std::string, Value>> attributes = {};
  std::string error = {};  // a sentence; empty: success
};

}  // namespace recurve
