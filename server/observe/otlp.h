#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "server/observe/trace_span.h"

namespace recurve {

// OTLP over HTTP, in JSON: https://opentelemetry.io/docs/specs/otlp/#otlphttp.

// Where spans are sent to.
struct OtlpTarget {
  std::string host = {}, port = {}, path = {};
};
// Of http://HOST[:PORT][/PATH], where 4318 and /v1/traces are what is left out. Throws
// std::invalid_argument, with a sentence, where it is none.
OtlpTarget parse_otlp_url(const std::string& url);

// Who sends them; the version of the program.
struct OtlpSource {
  std::string service = {}, instance = {}, version = {};
};

// An ExportTraceServiceRequest.
std::string otlp_json(const std::vector<TraceSpan>& spans, const OtlpSource& source);

struct OtlpResult {
  bool taken = false;
  bool again = false;        // it may be taken later
  std::string problem = {};  // why it was not
};
// Sends it and waits for the answer, no longer than `most` and what it takes to look up the host.
OtlpResult post_otlp(const OtlpTarget& target, const std::string& body,
                     std::chrono::milliseconds most);

}  // namespace recurve
