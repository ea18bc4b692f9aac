#pragma once
#include <cstddef>
#include <optional>
#include <string>

#include "server/request/clock.h"
#include "server/request/refusal.h"

namespace recurve {

// Where a call comes from, for traces. The headers are those of W3C Trace Context; empty if they
// are missing.
struct CallOrigin {
  std::string operation = {};  // an rpc, or a method and its route
  std::string traceparent = {}, tracestate = {};
};

// Where a frontend receives the events of one call and writes them to the client. Called on the
// strand of the call, by one thread at a time, unless stated otherwise. The sink reports to its
// call what happens to the client: see ServedCall.
class ResponseSink {
 public:
  // Known when the call arrives.
  virtual std::optional<Clock::time_point> deadline() const = 0;  // empty: none
  virtual std::string peer() const = 0;                           // for logs; empty: local
  virtual CallOrigin origin() const = 0;

  // Whether a write that flush() began is in progress; if so, the call is poked when it has
  // finished. Any thread.
  virtual bool busy() = 0;
  // The number of events that wait to be written.
  virtual size_t unsent() const = 0;
  // Starts to write the next waiting event, and with the last one the status of finish(). The
  // strand calls it last, and not while busy().
  virtual void flush() = 0;
  // Drops the waiting events.
  virtual void discard() = 0;
  // Disconnects a client that does not read. Also called after finished(), before done().
  virtual void cut() = 0;
  // The call ends: nothing is sent afterwards; waiting events are still written.
  virtual void finish(const Refused& refusal) = 0;
  // Whether the last write has begun: the strand has nothing more to do.
  virtual bool finished() const = 0;

  // The call is destroyed; nothing is called afterwards. Any thread.
  virtual void released() = 0;

 protected:
  ~ResponseSink() = default;
};

}  // namespace recurve
