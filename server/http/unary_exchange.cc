#include "server/http/unary_exchange.h"

#include <utility>

#include "server/http/body_fields.h"
#include "server/http/connection.h"

namespace recurve {
namespace {

// Commands are read on the thread of all connections.
constexpr size_t kMaxCommandBytes = 64 << 10;

}  // namespace

Route::Begin UnaryExchange::request_handler(ServerCore& core, RequestWork work) {
  return handler(core, {.text = std::move(work)});
}

Route::Begin UnaryExchange::command_handler(ServerCore& core, ToCommand to_command,
                                            ToObject to_object, int status) {
  return handler(
      core,
      {.to_command = std::move(to_command), .to_object = std::move(to_object), .status = status});
}

Route::Begin UnaryExchange::command_handler(ServerCore& core, ReadCommand read, ToObject to_object,
                                            int status) {
  return handler(
      core, {.read_command = std::move(read), .to_object = std::move(to_object), .status = status});
}

Route::Begin UnaryExchange::handler(ServerCore& core, Work work) {
  auto shared = std::make_shared<const Work>(std::move(work));
  return [&core, shared](std::shared_ptr<Connection> connection, HttpRequest request) {
    return std::shared_ptr<Exchange>(
        new UnaryExchange(std::move(connection), core, std::move(request), shared));
  };
}

UnaryExchange::UnaryExchange(std::shared_ptr<Connection> connection, ServerCore& core,
                             HttpRequest request, std::shared_ptr<const Work> work)
    : Exchange(std::move(connection)),
      core_(core),
      request_(std::move(request)),
      work_(std::move(work)) {}

void UnaryExchange::begin() {
  self_ = std::static_pointer_cast<UnaryExchange>(shared_from_this());
  Refused refused = core_.availability();
  if (!refused)
    refused = !work_->to_command ? admit() : guarded("text", [&] { return post_command(); });
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
    if (work_->read_command) {
      SessionCommand command;
      Refused wrong = work_->read_command(request_, core_, &command);
      std::string().swap(request_.body);
      return wrong ? wrong : post(std::move(command));
    }
    return work_->text(request_, core_, core_.limits(&unwanted_), &object);
  });
  if (refused || work_->text) answer(refused, std::move(object));
}

// The engine's thread only posts the result: another thread writes the response.
Refused UnaryExchange::post_command() {
  if (request_.body.size() > kMaxCommandBytes) {
    return invalid("", "the body must have at most {} bytes here, got {}", kMaxCommandBytes,
                   request_.body.size());
  }
  return post(work_->to_command(request_));
}

Refused UnaryExchange::post(SessionCommand command) {
  command.caller = request_.caller;
  if (Refused refused = validate(&command)) return refused;
  auto asked = std::make_shared<SessionCommand>(command);
  command.done = [self = self_, asked](SessionResult result) {
    self->core_.delivery_threads.post([self, asked, result = std::move(result)] {
      std::string object;
      const Refused refused = guarded("text", [&] {
        const Refused refusal = refusal_of(result);
        if (!refusal) object = dump(self->work_->to_object(*asked, result));
        return refusal;
      });
      self->answer(refused, std::move(object));
    });
  };
  return core_.post(std::move(command));
}

void UnaryExchange::answer(Refused refused, std::string object) {
  refused = core_.report(std::move(refused));
  std::string bytes = refused ? refusal_response(request_, *refused)
                              : json_response(request_, std::move(object), work_->status);
  connection_->write(self_, std::move(bytes), /*last=*/true);
}

void UnaryExchange::client_left() {
  unwanted_ = true;
  core_.text_threads.hasten(this);
}

void UnaryExchange::done() {
  const auto alive = std::move(self_);
  body_share_ = {};
  connection_.reset();
}

}  // namespace recurve
