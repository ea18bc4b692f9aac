#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "server/observe/tracer.h"
#include "server/request/clock.h"
#include "server/request/response_sink.h"
#include "server/request/token_stream.h"

namespace recurve {

// A call as a part of its client's trace: the id that its lines of the log have, and the spans that
// it becomes at its end. The call itself is one; where the engine had it, so are queue, prefill,
// decode and deliver, what its client took to read the rest. One thread at a time.
class CallTrace {
 public:
  CallTrace() = default;
  // tracer: null where no spans are sent; outlives this.
  CallTrace(Tracer* tracer, CallOrigin origin, Clock::time_point arrival);

  // In hexadecimal digits: of the trace that the client has named, or that is begun here; empty
  // where there is none.
  const std::string& id() const { return id_; }

  // How the call ended; `last`: the engine's words, if it had any.
  void ended(const Refused& refusal, const StreamEnd* last, const std::string& request_id,
             std::string_view tenant);
  // All of it has gone to the client, or never will: the spans are sent. Last.
  void delivered();

 private:
  Tracer* tracer_ = nullptr;  // null: no spans
  Clock::time_point arrival_ = {};
  std::string id_;
  TraceSpan call_;
  std::optional<StreamEnd> ending_;
};

}  // namespace recurve
