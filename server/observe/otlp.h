#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "server/observe/trace.h"

namespace recurve {

// OTLP over HTTP, in JSON: https://opentelemetry.io/docs/specs/otlp/#otlphttp.

// A collector of spans.
struct OtlpTarget {
  std::string host = {}, port = {}, path = {};
};
// Parses http://HOST[:PORT][/PATH]; the defaults are 4318 and /v1/traces. Throws
// std::invalid_argument with a sentence.
OtlpTarget parse_otlp_url(const std::string& url);

// The sender: attributes of the resource.
struct OtlpSource {
  std::string service = {}, instance = {}, version = {};
};

// An ExportTraceServiceRequest.
std::string otlp_json(const std::vector<TraceSpan>& spans, const OtlpSource& source);

struct OtlpResult {
  bool accepted = false;
  bool retryable = false;    // the collector may accept it later
  std::string problem = {};  // empty: accepted
};
// Sends it and waits for the response, at most for `most` plus the time to resolve the host.
OtlpResult post_otlp(const OtlpTarget& target, const std::string& body,
                     std::chrono::milliseconds most);

}  // namespace recurve
