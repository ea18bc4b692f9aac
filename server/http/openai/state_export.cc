#include "server/http/openai/state_export.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "server/http/connection.h"

namespace recurve {
namespace {

constexpr uint64_t kPiece = uint64_t{256} << 10;  // copied on the thread of all connections

}  // namespace

Route::Begin StateExport::handler(ServerCore& core) {
  return [&core](std::shared_ptr<Connection> connection, HttpRequest request) {
    return std::make_shared<StateExport>(std::move(connection), core, std::move(request));
  };
}

StateExport::StateExport(std::shared_ptr<Connection> connection, ServerCore& core,
                         HttpRequest request)
    : Exchange(std::move(connection)), core_(core), request_(std::move(request)) {}

void StateExport::begin() {
  self_ = std::static_pointer_cast<StateExport>(shared_from_this());
  Refused refused = core_.availability();
  if (!refused) refused = guarded("name", [&] { return post(); });
  if (refused) refuse(std::move(refused));
}

Refused StateExport::post() {
  SessionCommand command{.kind = SessionCommand::Kind::kExport,
                         .caller = request_.caller,
                         .name = request_.names.front()};
  if (Refused refused = validate(&command)) return refused;
  command.done = [self = self_](SessionResult result) {
    self->result_ = std::move(result);
    self->core_.text_threads.post(self.get());
  };
  return core_.post(std::move(command));
}

// The engine has answered. The checksums are computed here.
void StateExport::run() {
  const auto alive = self_;
  Refused refused = guarded("name", [&] {
    Refused failed = refusal_of(result_);
    if (!failed) total_ = result_.state->bytes();
    return failed;
  });
  if (refused) return refuse(std::move(refused));
  write_next(bytes_head(request_, total_));
}

void StateExport::refuse(Refused refused) {
  refused = core_.report(std::move(refused));
  last_ = true;
  connection_->write(self_, refusal_response(request_, *refused), /*last=*/true);
}

// Writes the bytes and the next piece after them.
void StateExport::write_next(std::string bytes) {
  if (gone_) return connection_->answer_done(self_);
  const size_t begin = bytes.size();
  bytes.resize(begin + static_cast<size_t>(std::min(kPiece, total_ - sent_)));
  const std::span<char> piece = std::span(bytes).subspan(begin);
  try {
    result_.state->read(sent_, piece);
  } catch (const StateGone&) {  // the head has the size of the whole
    gone_ = true;
    connection_->cut();
    return connection_->answer_done(self_);
  }
  sent_ += piece.size();
  last_ = sent_ == total_;
  connection_->write(self_, std::move(bytes), last_);
}

void StateExport::written(bool ok) {
  if (last_) return;
  if (!ok) gone_ = true;
  write_next({});
}

void StateExport::done() {
  const auto alive = std::move(self_);
  result_.state.reset();
  connection_.reset();
}

}  // namespace recurve
