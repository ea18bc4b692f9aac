#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace recurve {

// Where a call stands in the trace of whoever makes it: W3C Trace Context,
// https://www.w3.org/TR/trace-context/. Neither of the ids is all zeros.
using TraceId = std::array<uint8_t, 16>;
using SpanId = std::array<uint8_t, 8>;
struct TraceContext {
  TraceId trace = {};
  SpanId span = {};      // the caller's own, which that of the call is a part of
  bool sampled = false;  // the caller's spans are kept, so those of the call are wanted
};

// Of the header traceparent, of version 00 or what is later and begins alike; nothing where it is
// none.
std::optional<TraceContext> parse_traceparent(std::string_view header);

// Lower-case hexadecimal digits, two a byte.
std::string to_hex(const TraceId& id);
std::string to_hex(const SpanId& id);

// Random.
TraceId make_trace_id();
SpanId make_span_id();

}  // namespace recurve
