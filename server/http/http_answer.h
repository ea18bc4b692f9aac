#pragma once
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/http/answer_dialect.h"
#include "server/http/exchange.h"
#include "server/serving/generation.h"

namespace recurve {

// A request for answers, to one prompt or to several that run side by side: a body on its way in,
// answers on their way out. It is read on a text thread; then each answer is a call of its own,
// with its own strand, and what they say goes out in the order in which it comes.
class HttpAnswer final : public Exchange, private CallRegistry::Call, private Executor::Task {
 public:
  HttpAnswer(std::shared_ptr<Connection> connection, ServerCore& core, HttpRequest request,
             std::unique_ptr<AnswerDialect> dialect);
  ~HttpAnswer() override;

  void begin() override;
  void written(bool ok) override;
  void silent() override;
  void client_left() override;
  void done() override;

 private:
  // The door of one answer.
  class Part;

  void run() override;
  void abort(CallRegistry::Reason reason) override;
  Refused admit();
  Refused read_deadline();
  Refused read();
  void start(Refused refused);
  Refused open_parts();
  Refused make_parts();
  std::string id_of(size_t part) const;

  // What the parts say; any thread.
  void send(size_t part, const AnswerEvent& event);
  void part_finished(const Refused& refusal);
  void push_out();
  size_t unsent() const;
  void discard();

  // With mutex_ held.
  void conclude();
  void fail(const Refused& refusal);

  // Among the calls under way: one call while it is read, then as many as there are parts.
  enum class CountedAs { kItself, kRefused, kParts };

  const Clock::time_point arrival_ = Clock::now();
  ServerCore& core_;
  const std::shared_ptr<ServedModel> model_ = core_.model();
  CountedAs counted_as_ = CountedAs::kItself;
  std::shared_ptr<HttpAnswer> self_;
  ByteBudget::Share body_share_;
  ByteBudget::Share gathered_share_;  // of the answer, where it is gathered
  HttpRequest request_;
  std::optional<Clock::time_point> deadline_;
  std::vector<TextRequest> asked_;
  std::atomic<bool> unwanted_{false};

  mutable std::mutex mutex_;
  std::unique_ptr<AnswerDialect> dialect_;
  std::vector<std::unique_ptr<Part>> parts_;  // once all have been read
  size_t unfinished_ = 0;                     // of them
  Refused refusal_;                           // the first
  std::string pending_;
  bool changes_session_ = false;  // that the client has named
  bool accepted_ = false;         // by the engine: a session may have absorbed something
  bool is_read_ = false;          // whether it is a stream is known
  bool streaming_ = false;        // it has begun: a refusal is no response of its own any more
  bool head_sent_ = false;        // of the stream
  bool ended_ = false;            // nothing more will be said
  bool last_ = false;             // and it is on its way
  std::atomic<bool> writing_{false}, gone_{false};
};

}  // namespace recurve
