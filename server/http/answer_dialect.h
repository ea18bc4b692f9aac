#pragma once
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/request/refusal.h"
#include "server/serving/events.h"
#include "server/serving/gathered_answer.h"
#include "server/serving/text_request.h"
#include "server/text/work_limits.h"

namespace recurve {

// How a request for answers is read and what is said to it: one resource of a dialect. One thread
// at a time.
class AnswerDialect {
 public:
  virtual ~AnswerDialect() = default;

  // What the body asks for: at least one request, each with an answer of its own. Once, on a text
  // thread; may throw WorkUnwanted as `limits` have it.
  virtual Refused read(std::string body, const WorkLimits& limits,
                       std::vector<TextRequest>* asked) = 0;
  // What has to be done before the requests begin; calls `go` once, from any thread, now or later.
  virtual void prepare(std::vector<TextRequest>* asked, std::function<void(Refused)> go) {
    (void)asked;
    go({});
  }

  // Once the body has been read: whether events are sent as they come.
  virtual bool streams() const = 0;
  // What it has in memory at the end; nothing where all goes out as it comes.
  virtual std::optional<GatheredForm> gathers() const {
    return streams() ? std::nullopt : std::optional(kGatheredChoices);
  }
  // What has come of request `index`. Of a stream, what is to be sent for it.
  virtual std::string take(size_t index, const AnswerEvent& event) = 0;
  // A stream's last words, where all has come or nothing more will.
  virtual std::string stream_end() = 0;
  virtual std::string broken(const Refusal& refusal) = 0;
  // Without a stream: the whole, once all has come.
  virtual std::string whole() = 0;

  // Nothing more will be asked of it: the answers are complete, or not wanted any more.
  virtual void ended(bool complete) { (void)complete; }
};

}  // namespace recurve
