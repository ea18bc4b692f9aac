#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/request/refusal.h"
#include "server/serving/events.h"
#include "server/serving/gathered_answer.h"
#include "server/serving/text_request.h"
#include "server/serving/validate.h"
#include "server/text/work_limits.h"

namespace recurve {

// How a resource of a dialect reads a request for answers and writes its response. One thread at a
// time.
class AnswerDialect {
 public:
  virtual ~AnswerDialect() = default;

  // Reads the body into at least one request, each with a separate answer. Once, on a text thread;
  // may throw WorkUnwanted as `limits` require it.
  virtual Refused read(std::string body, const WorkLimits& limits,
                       std::vector<TextRequest>* asked) = 0;
  // Does what must happen before the requests begin. True: they can begin at once. Otherwise `go`
  // is called once, from any thread, when they can. Then the answer may end at once, and this
  // object with it: what calls `go` uses no member afterwards.
  virtual bool prepare(std::vector<TextRequest>* asked, std::function<void(Refused)> go) {
    (void)asked, (void)go;
    return true;
  }
  // Does what must happen after the answers ended and before the end of the response is written.
  // As prepare(), except that `go` is not called before this returns.
  virtual bool complete(std::function<void(Refused)> go) {
    (void)go;
    return true;
  }
  // Request `index`, if read() has validated it; null: it has not.
  virtual std::unique_ptr<ParsedRequest> take_parsed(size_t) { return nullptr; }

  // Known after read(): whether events are sent as they come.
  virtual bool streams() const = 0;
  // What is in memory when the answer ends; nothing if all of it was sent before.
  virtual std::optional<GatheredForm> gathers() const {
    return streams() ? std::nullopt : std::optional(kGatheredChoices);
  }
  // Adds an event of request `index`. Returns the bytes to send for it in a stream.
  virtual std::string take(size_t index, const AnswerEvent& event) = 0;
  // The end of a stream that is complete, or that fails.
  virtual std::string stream_end() = 0;
  virtual std::string broken(const Refusal& refusal) = 0;
  // The complete response, if it is no stream.
  virtual std::string whole() = 0;

  // The last call: the answers are complete, or not needed any more.
  virtual void ended(bool complete) { (void)complete; }
};

}  // namespace recurve
