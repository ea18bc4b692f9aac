#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "server/observe/tracer.h"
#include "server/request/clock.h"
#include "server/request/response_sink.h"
#include "server/request/token_stream.h"

namespace recurve {

// The trace of a call: the id for its log lines, and its spans, which are sent at its end. A span
// for the call, and after it has run in the engine queue, prefill, decode and deliver (the client
// reads the rest). One thread at a time.
class CallTrace {
 public:
  CallTrace() = default;
  // tracer: null if no spans are sent; outlives this.
  CallTrace(Tracer* tracer, CallOrigin origin, Clock::time_point arrival);

  // The id of the client's trace, or of one that starts here, in hexadecimal; empty: no trace.
  const std::string& id() const { return id_; }

  // How the call ended. `last`: the end of its stream, null if the engine did not run it.
  void ended(const Refused& refusal, const StreamEnd* last, const std::string& request_id,
             std::string_view tenant);
  // The answer is written or given up: sends the spans. Last.
  void delivered();

 private:
  Tracer* tracer_ = nullptr;  // null: no spans
  Clock::time_point arrival_ = {};
  std::string id_;
  TraceSpan call_;
  std::optional<StreamEnd> ending_;
};

}  // namespace recurve
