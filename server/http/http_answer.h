#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "server/http/openai_answer.h"
#include "server/request/generation.h"

namespace recurve {

class Connection;

// The door of one completion: a request's body on its way in, an answer's bytes on their way out.
// Everything that touches the call happens on the connection's thread, but for what Door says.
class HttpAnswer final : public AnswerDoor {
 public:
  // What the request's head says.
  struct Head {
    bool chat = false;
    std::string request_id = {};  // empty: none
    std::string session = {};     // empty: none, or in the body
  };

  HttpAnswer(std::shared_ptr<Connection> connection, Serving& serving, Head head, std::string body);

  // On the connection's thread, where the call lives until done() is called. Begins; holds itself
  // until the call has been released.
  static void begin(const std::shared_ptr<HttpAnswer>& answer);
  void written(bool ok);  // what went to the connection's write() is through, or cannot be
  void client_left();     // once or more
  void done();            // nothing of the call is under way

 private:
  Refused read(TextRequest* asked) override;
  void send(AnswerEvent event) override;
  std::optional<Clock::time_point> deadline() const override { return std::nullopt; }
  std::string peer() const override;
  bool busy() override;
  size_t unsent() const override { return pending_.empty() ? 0 : 1; }
  void flush() override;
  void discard() override { pending_.clear(); }
  void cut() override;
  void finish(const Refused& refusal) override;
  bool finished() const override { return finished_; }
  void released() override { self_.reset(); }

  std::shared_ptr<Connection> connection_;  // until done()
  Serving& serving_;
  ServedCall* call_ = nullptr;
  std::shared_ptr<HttpAnswer> self_;

  // On the strand.
  const Head head_;
  std::string body_;
  OpenAiForm form_;
  std::optional<OpenAiAnswer> answer_;  // once the first event has come
  std::string request_id_;
  std::string pending_;
  bool begun_ = false;  // the head of a stream has been written
  bool finishing_ = false, finished_ = false;

  std::atomic<bool> writing_{false}, more_{false}, gone_{false};
};

}  // namespace recurve
