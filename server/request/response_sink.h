#pragma once
#include <cstddef>
#include <optional>
#include <string>

#include "server/request/clock.h"
#include "server/request/refusal.h"

namespace recurve {

// What is known of where a call comes from, for traces. The headers are those of W3C's Trace
// Context, as they have come; empty where they have not.
struct CallOrigin {
  std::string operation = {};  // what is called: an rpc, or a method and its route
  std::string traceparent = {}, tracestate = {};
};

// One call's end at its client: what a protocol makes of it. Called on the call's strand, by one
// thread at a time, unless it says otherwise. A door tells its call what happens to the client: see
// ServedCall.
class ResponseSink {
 public:
  // What is known of the call as it comes.
  virtual std::optional<Clock::time_point> deadline() const = 0;  // empty: none
  virtual std::string peer() const = 0;                           // for logs; empty: local
  virtual CallOrigin origin() const = 0;

  // Whether what flush() began is still on its way to the client; if so, the call is poked when it
  // is through. Any thread.
  virtual bool busy() = 0;
  // How many events wait behind that.
  virtual size_t unsent() const = 0;
  // Called last of all that the strand does, and not while busy(): the next of what waits goes on
  // its way, and with the last of it what finish() has said.
  virtual void flush() = 0;
  // What waits is not sent.
  virtual void discard() = 0;
  // The client reads nothing, and may go on so for ever: the door breaks off, unless it has.
  virtual void cut() = 0;
  // The call ends: nothing is sent afterwards, what waits still is.
  virtual void finish(const Refused& refusal) = 0;
  // Whether the last of it is on its way: the strand has nothing more to do.
  virtual bool finished() const = 0;

  // The call is no more, and nothing else will be called. On any thread.
  virtual void released() = 0;

 protected:
  ~ResponseSink() = default;
};

}  // namespace recurve
