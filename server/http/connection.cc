#include "server/http/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>

#include "server/http/body_fields.h"
#include "server/http/openai/errors.h"
#include "server/http/response.h"

namespace recurve {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

// What is read at once, and what lies between two parts of a body: the length of a chunk with its
// extensions, which mean nothing here, and trailing fields.
constexpr size_t kMostBuffered = 80 << 10;
// For the beginning of a next request.
constexpr size_t kFirstBytes = 2048;

std::string error(int status, const std::string& message) {
  return response(
      {.status = status, .body = dump(error_object(status, message)), .keep_alive = false});
}

std::string operation_of(const Route& route) {
  const auto verb = http::to_string(route.verb);
  return fmt::format("{} {}", std::string_view(verb.data(), verb.size()), route.path);
}

}  // namespace

Connection::Connection(HttpContext& context, asio::ip::tcp::socket socket, const Peer& peer)
    : context_(context),
      stream_(std::move(socket)),
      silence_(context.io),
      peer_(peer.address),
      subject_(peer.subject),
      network_(peer.of_this_machine ? "" : peer.network),
      number_(peer.number),
      buffer_(kMostBuffered) {}

void Connection::start() {
  context_.connections.insert(shared_from_this());
  read_head();
}

// Waits for the next request, as long as an idle client may.
void Connection::await_request() {
  if (buffer_.size() > 0) return read_head();
  parser_.reset();
  buffer_.shrink_to_fit();
  stream_.expires_after(context_.options.times.idle);
  stream_.async_read_some(buffer_.prepare(kFirstBytes),
                          [self = shared_from_this()](const Error& error, size_t bytes) {
                            if (error) return self->gone();
                            self->buffer_.commit(bytes);
                            self->read_head();
                          });
}

void Connection::read_head() {
  response_begun_ = false;
  head_ = {};
  parser_.emplace();
  parser_->header_limit(kMostHeadBytes);
  parser_->body_limit(static_cast<uint64_t>(context_.options.max_body_bytes));
  stream_.expires_after(context_.options.times.head);
  http::async_read_header(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](const Error& error, size_t) { self->head_came(error); });
}

void Connection::head_came(const Error& error) {
  if (error) return refuse_unread(error);
  const bool old = Clock::now() - began_ > context_.options.times.age;
  head_ = read_request_head(parser_->get(), parser_->keep_alive() && !context_.closing && !old,
                            context_.options);
  if (head_.answer) return respond(std::move(*head_.answer));
  if (const Refused refused = identify()) {
    head_.keep_alive = false;  // its body is not read
    return respond(refusal_response(*context_.core.report(refused), false));
  }
  request_ = take_request(*head_.match.route);
  if (!head_.continues) return read_body();
  out_ = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(stream_, asio::buffer(out_),
                    [self = shared_from_this()](const Error& failed, size_t) {
                      failed ? self->gone() : self->read_body();
                    });
}

// Who asks, and whether that is theirs to ask.
Refused Connection::identify() {
  const Role least = head_.match.route->least;
  if (least == Role::kNobody) {
    caller_ = kStranger;
    return {};
  }
  caller_ = context_.core.access.identify(
      {field_of(parser_->get(), "Authorization"), subject_, peer_, network_, number_});
  Refused refused = check_role(caller_, least);
  if (refused || least == Role::kUser || context_.options.operators) return refused;
  return refuse(EndReason::kForbidden,
                "operators have a listener of their own: ask at --admin or --metrics");
}

void Connection::read_body() {
  stream_.expires_after(context_.options.times.body);
  parser_->eager(true);
  part_came({});
}

void Connection::part_came(const Error& error) {
  if (error) return refuse_unread(error);
  if (!hold_body()) {
    head_.keep_alive = false;
    return respond(
        refusal_response(*context_.core.report(refuse(EndReason::kRequestMemory)), false));
  }
  if (parser_->is_done()) return body_came();
  http::async_read_some(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](const Error& failed, size_t) { self->part_came(failed); });
}

// Bodies that are on their way count as requests under way do, as far as they have come: twice as
// much as that at most. A body that is the only one has its room.
bool Connection::hold_body() {
  const size_t size = parser_->get().body().size();
  if (size <= body_held_) return true;
  body_held_ = std::bit_ceil(size);
  body_share_ = {};
  body_share_ = context_.core.message_bytes.take(static_cast<int64_t>(body_held_), caller_.share());
  return static_cast<bool>(body_share_);
}

void Connection::body_came() {
  const Route& route = *head_.match.route;
  request_.body = std::move(parser_->get().body());
  HttpRequest request = std::exchange(request_, {});
  body_share_ = {};  // whoever keeps the body counts it
  body_held_ = 0;
  if (route.exchange != nullptr) return begin_exchange(route, std::move(request));
  respond(route.respond(context_, request, head_.keep_alive));
}

// All of it but the body. Fields that come behind the body are none of the head.
HttpRequest Connection::take_request(const Route& route) {
  const auto& fields = parser_->get();
  HttpRequest request{.caller = caller_,
                      .names = std::move(head_.match.names),
                      .query = std::move(head_.query),
                      .request_id = std::string(field_of(fields, "x-request-id")),
                      .origin = {.operation = operation_of(route),
                                 .traceparent = std::string(field_of(fields, "traceparent")),
                                 .tracestate = all_of(fields, "tracestate")},
                      .session = std::string(field_of(fields, "x-recurve-session")),
                      .timeout_ms = std::string(field_of(fields, "x-recurve-timeout-ms")),
                      .if_none_match = std::string(field_of(fields, "If-None-Match"))};
  if (request.request_id.empty()) request.request_id = make_name("r-");
  return request;
}

void Connection::begin_exchange(const Route& route, HttpRequest request) {
  stream_.expires_never();
  parser_.reset();
  if (buffer_.size() == 0) buffer_.shrink_to_fit();
  answer_ = route.exchange(context_, shared_from_this(), std::move(request));
  ++context_.answers;
  answer_->begin();
  await_silence();
  watch();
}

// Anew with each write.
void Connection::await_silence() {
  silence_.expires_after(context_.options.times.silence);
  silence_.async_wait([self = shared_from_this()](const Error& error) {
    if (error || self->answer_ == nullptr) return;
    self->answer_->silent();
    self->await_silence();
  });
}

// A request that could not be read to its end: the connection is of no use any more.
void Connection::refuse_unread(const Error& failed) {
  head_.keep_alive = false;
  if (failed == http::error::header_limit || failed == http::error::buffer_overflow) {
    return respond(error(431, fmt::format("the head must have at most {} bytes, and what stands "
                                          "between the chunks of a body little",
                                          kMostHeadBytes)));
  }
  if (failed == http::error::body_limit) {
    return respond(error(
        413, fmt::format("the body must have at most {} bytes", context_.options.max_body_bytes)));
  }
  const bool read = failed.category() == http::make_error_code(http::error::bad_method).category();
  const bool ended = failed == http::error::end_of_stream || failed == http::error::partial_message;
  if (read && !ended) return respond(error(400, "this is no HTTP: " + failed.message()));
  gone();
}

// A client that closes its side, as one that goes away does, is not answered any more: which of the
// two it is cannot be seen before something is sent.
void Connection::watch() {
  stream_.socket().async_wait(asio::ip::tcp::socket::wait_read,
                              [self = shared_from_this()](const Error& error) {
                                if (error || self->answer_ == nullptr) return;
                                if (self->look_at_client()) self->watch();
                              });
}

// Reads what comes of next requests, as long as there is room for it, so that the end behind it is
// seen. False: there is nothing more to watch.
bool Connection::look_at_client() {
  if (buffer_.size() >= kMostHeadBytes) return false;
  const auto space = buffer_.prepare(kFirstBytes);
  const ssize_t got =
      recv(stream_.socket().native_handle(), space.data(), space.size(), MSG_DONTWAIT);
  if (got > 0) buffer_.commit(static_cast<size_t>(got));
  if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR))) return true;
  answer_->client_left();
  return false;
}

void Connection::write(std::shared_ptr<Exchange> answer, std::string bytes, bool last) {
  asio::post(context_.io, [self = shared_from_this(), answer = std::move(answer),
                           bytes = std::move(bytes), last]() mutable {
    self->out_ = self->dress(std::move(bytes));
    if (self->answer_ != nullptr) self->await_silence();
    self->stream_.expires_after(std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(self->context_.core.options.stall_seconds)));
    asio::async_write(self->stream_, asio::buffer(self->out_),
                      [self, answer = std::move(answer), last](const Error& error, size_t) {
                        self->stream_.expires_never();
                        answer->written(!error);
                        if (last) self->over(answer, !error);
                      });
  });
}

void Connection::answer_done(std::shared_ptr<Exchange> answer) {
  asio::post(context_.io, [self = shared_from_this(), answer = std::move(answer)] {
    self->over(answer, false);
  });
}

void Connection::over(const std::shared_ptr<Exchange>& answer, bool ok) {
  answer_.reset();
  silence_.cancel();
  answer->done();
  --context_.answers;
  context_.end_if_idle();
  if (!ok || !head_.keep_alive || closed_ || context_.closing) return gone();
  stream_.socket().cancel();  // watch()
  await_request();
}

void Connection::cut() {
  asio::post(context_.io, [self = shared_from_this()] { self->close(); });
}

void Connection::respond(std::string bytes) {
  out_ = dress(std::move(bytes));
  stream_.expires_after(context_.options.times.head);
  asio::async_write(
      stream_, asio::buffer(out_), [self = shared_from_this()](const Error& error, size_t) {
        if (error) return self->gone();
        if (self->head_.keep_alive) return self->await_request();
        Error ignored;
        self->stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
        self->stream_.expires_after(self->context_.options.times.linger);
        self->buffer_.clear();
        self->linger();
      });
}

// What every response to this request says besides, in the first of its bytes; of a HEAD, nothing
// goes out behind its head.
std::string Connection::dress(std::string bytes) {
  if (head_.bodiless) {
    bytes.resize(response_begun_ ? 0 : std::min(bytes.size(), bytes.find("\r\n\r\n") + 4));
  }
  if (!std::exchange(response_begun_, true)) bytes.insert(bytes.find("\r\n") + 2, head_.headers);
  return bytes;
}

// A connection that is closed with something unread takes back what was written: a client that is
// still sending would not see why it is refused.
void Connection::linger() {
  stream_.async_read_some(buffer_.prepare(kFirstBytes),
                          [self = shared_from_this()](const Error& error, size_t) {
                            error ? self->gone() : self->linger();
                          });
}

void Connection::close() {
  closed_ = true;
  if (answer_ != nullptr) answer_->client_left();
  if (answer_ == nullptr) return gone();
  stream_.socket().cancel();
}

void Connection::gone() {
  closed_ = true;
  Error ignored;
  stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  stream_.close();
  context_.connections.erase(shared_from_this());
}

}  // namespace recurve
