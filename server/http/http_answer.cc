#include "server/http/http_answer.h"

#include <fmt/format.h>

#include <utility>

#include "server/http/body_fields.h"
#include "server/http/connection.h"
#include "server/http/response.h"

namespace recurve {

HttpAnswer::HttpAnswer(std::shared_ptr<Connection> connection, Serving& serving, Head head,
                       std::string body)
    : connection_(std::move(connection)),
      serving_(serving),
      head_(std::move(head)),
      body_(std::move(body)),
      form_{.chat = head_.chat},
      request_id_(head_.request_id) {}

void HttpAnswer::begin(const std::shared_ptr<HttpAnswer>& answer) {
  answer->self_ = answer;
  answer->call_ = new Generation(answer->serving_, *answer);
  answer->call_->open(kAnyone, static_cast<int64_t>(answer->body_.size()),
                      answer->head_.request_id);
}

Refused HttpAnswer::read(TextRequest* asked) {
  asked->session = head_.session;
  auto refused = read_openai(body_, serving_.info.model_name, asked, &form_);
  asked->id = head_.request_id;
  body_ = {};
  return refused;
}

void HttpAnswer::send(AnswerEvent event) {
  if (!answer_) answer_.emplace(form_, serving_.info.model_name, *serving_.rules.tokenizer);
  if (const auto* accepted = std::get_if<RequestAccepted>(&event)) {
    request_id_ = accepted->request_id;
    if (form_.stream) {
      begun_ = true;
      pending_ += stream_head(connection_->keeps_alive(), request_id_);
    }
  }
  const std::string events = answer_->take(event);
  if (!events.empty()) pending_ += chunk(events);
}

// A refusal is a response of its own as long as nothing else has been said.
void HttpAnswer::finish(const Refused& refusal) {
  finishing_ = true;
  if (begun_) {
    if (refusal) pending_ += chunk(OpenAiAnswer::broken(*refusal));
    pending_ += last_chunk();
    return;
  }
  pending_ = refusal ? refusal_response(*refusal, connection_->keeps_alive(), request_id_)
                     : response({.body = answer_->whole(),
                                 .keep_alive = connection_->keeps_alive(),
                                 .request_id = request_id_});
}

std::string HttpAnswer::peer() const { return connection_->peer(); }

bool HttpAnswer::busy() {
  if (!writing_) return false;
  more_ = true;
  return writing_;
}

void HttpAnswer::flush() {
  if (gone_) pending_.clear();
  if (finished_) return;
  if (pending_.empty()) {
    if (!finishing_) return;
    finished_ = true;
    return connection_->answer_done(self_);
  }
  finished_ = finishing_;
  writing_ = true;
  connection_->write(self_, std::exchange(pending_, {}), finished_);
}

void HttpAnswer::written(bool ok) {
  writing_ = false;
  const bool awaited = more_.exchange(false);
  if (!ok) return client_left();
  if (awaited) call_->poke();
}

void HttpAnswer::client_left() {
  if (call_ == nullptr || gone_.exchange(true)) return;
  call_->left();
}

void HttpAnswer::done() {
  connection_.reset();
  std::exchange(call_, nullptr)->done();
}

void HttpAnswer::cut() { connection_->cut(); }

}  // namespace recurve
