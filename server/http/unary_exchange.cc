#include "server/http/unary_exchange.h"

#include <utility>

#include "server/http/connection.h"
#include "server/http/guarded.h"
#include "server/http/response.h"
#include "server/serving/session_rules.h"

namespace recurve {
namespace {

// It is read on the thread of all connections.
constexpr size_t kMostCommandBytes = 64 << 10;

}  // namespace

UnaryExchange::UnaryExchange(std::shared_ptr<Connection> connection, ServerCore& core,
                             HttpRequest request, TextWork work)
    : Exchange(std::move(connection)),
      core_(core),
      request_(std::move(request)),
      work_(std::move(work)) {}

UnaryExchange::UnaryExchange(std::shared_ptr<Connection> connection, ServerCore& core,
                             HttpRequest request, ToCommand to_command, ToObject to_object,
                             int status)
    : Exchange(std::move(connection)),
      core_(core),
      request_(std::move(request)),
      to_command_(std::move(to_command)),
      to_object_(std::move(to_object)),
      status_(status) {}

void UnaryExchange::begin() {
  self_ = std::static_pointer_cast<UnaryExchange>(shared_from_this());
  Refused refused = core_.availability();
  if (!refused) refused = work_ ? admit() : guarded("text", [&] { return post_command(); });
  if (refused) answer(refused, {});
}

Refused UnaryExchange::admit() {
  const size_t bytes = request_.body.size();
  body_share_ = core_.message_bytes.take(static_cast<int64_t>(bytes), request_.caller.share());
  const auto most = static_cast<size_t>(core_.options.max_tokenising);
  if (body_share_ && core_.text_threads.try_post(this, bytes, most, request_.caller.share()))
    return {};
  return refuse(EndReason::kManyWaiting);
}

void UnaryExchange::run() {
  const auto alive = self_;
  std::string object;
  const Refused refused = guarded("text", [&] {
    if (unwanted_) return Refused(refuse(EndReason::kClientGone));
    return work_(std::move(request_.body), *model_, core_.limits(&unwanted_), &object);
  });
  answer(refused, std::move(object));
}

// The engine's thread may only post what it says.
Refused UnaryExchange::post_command() {
  if (request_.body.size() > kMostCommandBytes) {
    return invalid("", "the body must have at most {} bytes here, got {}", kMostCommandBytes,
                   request_.body.size());
  }
  SessionCommand command = to_command_(request_);
  command.caller = request_.caller;
  if (Refused refused = prepare(&command)) return refused;
  auto asked = std::make_shared<SessionCommand>(command);
  command.done = [self = self_, asked](SessionResult result) {
    self->core_.delivery_threads.post([self, asked, result = std::move(result)] {
      std::string object;
      const Refused refused = guarded("text", [&] {
        const Refused refusal = refusal_of(result);
        if (!refusal) object = dump(self->to_object_(*asked, result));
        return refusal;
      });
      self->answer(refused, std::move(object));
    });
  };
  return post(model_->queue, std::move(command));
}

void UnaryExchange::answer(Refused refused, std::string object) {
  refused = core_.report(std::move(refused));
  const bool keep_alive = connection_->keeps_alive();
  std::string bytes = refused ? refusal_response(*refused, keep_alive, request_.request_id)
                              : response({.status = status_,
                                          .body = std::move(object),
                                          .keep_alive = keep_alive,
                                          .request_id = request_.request_id});
  connection_->write(self_, std::move(bytes), /*last=*/true);
}

void UnaryExchange::client_left() {
  unwanted_ = true;
  core_.text_threads.hasten(this);
}

void UnaryExchange::done() {
  const auto alive = std::move(self_);
  connection_.reset();
}

}  // namespace recurve
