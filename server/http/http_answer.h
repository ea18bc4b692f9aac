#pragma once
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/http/answer_dialect.h"
#include "server/http/exchange.h"
#include "server/http/routes.h"
#include "server/serving/generation.h"

namespace recurve {

// A request for answers, to one prompt or to several that run concurrently. A text thread reads the
// body and begins the answers. Each answer is a separate call with a separate strand; their events
// are sent in the order in which they are written.
class HttpAnswer final : public Exchange, private CallRegistry::Call, private Executor::Task {
 public:
  // Called once, with the id that the request has.
  using MakeDialect = std::function<std::unique_ptr<AnswerDialect>(const HttpRequest&)>;
  HttpAnswer(std::shared_ptr<Connection> connection, ServerCore& core, HttpRequest request,
             const MakeDialect& dialect);
  ~HttpAnswer() override;

  void begin() override;
  void written(bool ok) override;
  void silent() override;
  void client_left() override;
  void done() override;

 private:
  // One answer.
  class Part;

  void run() override;
  void abort(CallRegistry::Reason reason) override;
  void take_id();
  void forget_id();
  Refused admit();
  Refused read();
  void start(Refused refused, std::optional<size_t> waited = {});
  Refused open_parts(std::optional<size_t> waited);
  Refused make_parts();
  std::string id_of(size_t part) const;

  // Called by the parts, on any thread.
  void send(size_t part, const AnswerEvent& event);
  void part_finished(const Refused& refusal);
  void completed(const Refused& refusal);
  void write_pending();
  size_t unsent() const;
  void discard();

  // With mutex_ held.
  void conclude();
  void fail(const Refused& refusal);

  // In the registry it is one call while it is read, then as many as there are parts.
  enum class CountedAs { kItself, kRefused, kParts };

  const Clock::time_point arrival_ = Clock::now();
  ServerCore& core_;
  CountedAs counted_as_ = CountedAs::kItself;
  std::shared_ptr<HttpAnswer> self_;
  ByteBudget::Share body_share_;
  ByteBudget::Share gathered_share_;  // for the answer, if it is gathered
  HttpRequest request_;
  std::optional<Clock::time_point> deadline_;
  double waited_seconds_ = 0;  // for a text thread
  std::vector<TextRequest> asked_;
  std::atomic<bool> unwanted_{false}, aborted_{false};
  std::atomic<Part*> first_{nullptr};  // once there are parts: an abort of it ends all

  mutable std::mutex mutex_;
  std::unique_ptr<AnswerDialect> dialect_;
  std::vector<std::unique_ptr<Part>> parts_;  // once all have been read
  size_t unfinished_ = 0;                     // of them
  Refused refusal_;                           // the first
  std::string pending_;
  bool changes_session_ = false;  // one that the client has named
  bool accepted_ = false;         // by the engine: a session may have absorbed something
  bool is_read_ = false;          // dialect_->streams() is known
  bool streaming_ = false;        // the stream has begun: a refusal is a part of it
  bool head_sent_ = false;        // of the stream
  bool ended_ = false;            // pending_ has the end of the response
  bool last_ = false;             // the end is being written
  std::atomic<bool> writing_{false}, gone_{false};
};

// A handler that answers in a dialect. `state`: of the API, that its dialect needs.
template <typename Dialect, typename... State>
Route::Begin answers(ServerCore& core, std::shared_ptr<State>... state) {
  return [&core, ... state = std::move(state)](std::shared_ptr<Connection> connection,
                                               HttpRequest request) {
    const HttpAnswer::MakeDialect dialect = [&](const HttpRequest& asked) {
      return std::make_unique<Dialect>(core, *state..., asked);
    };
    return std::make_shared<HttpAnswer>(std::move(connection), core, std::move(request), dialect);
  };
}

}  // namespace recurve
