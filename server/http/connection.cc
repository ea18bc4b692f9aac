#include "server/http/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <limits>

namespace recurve {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

// Bytes that are read at once. Between two parts of a body these may be the length of a chunk with
// its extensions, which are ignored, and trailing fields.
constexpr size_t kMostBuffered = 80 << 10;
// For the first read of a next request.
constexpr size_t kFirstBytes = 2048;

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

void Connection::await_request() {
  if (buffer_.size() > 0) return read_head();
  parser_.reset();
  buffer_.shrink_to_fit();
  stream_.expires_after(context_.options.times.idle);
  stream_.async_read_some(buffer_.prepare(kFirstBytes),
                          [self = shared_from_this()](const Error& error, size_t bytes) {
                            if (error) return self->closed();
                            self->buffer_.commit(bytes);
                            self->read_head();
                          });
}

void Connection::read_head() {
  response_begun_ = false;
  head_ = {};
  parser_.emplace();
  parser_->header_limit(kMostHeadBytes);
  parser_->body_limit(std::numeric_limits<uint64_t>::max());  // until limit_body()
  stream_.expires_after(context_.options.times.head);
  http::async_read_header(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](const Error& error, size_t) { self->head_arrived(error); });
}

void Connection::head_arrived(const Error& error) {
  if (error) return refuse_unread(error);
  const bool old = Clock::now() - began_ > context_.options.times.age;
  head_ = read_request_head(parser_->get(), parser_->keep_alive() && !context_.closing && !old,
                            context_.options, context_.apis);
  if (head_.answer) return respond(std::move(*head_.answer));
  if (const Refused refused = identify()) {
    return refuse_body(*refused);
  }
  if (!limit_body()) return refuse_unread(http::make_error_code(http::error::body_limit));
  request_ = take_request(*head_.match.route);
  if (!head_.continues) return read_body();
  out_ = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(stream_, asio::buffer(out_),
                    [self = shared_from_this()](const Error& failed, size_t) {
                      failed ? self->closed() : self->read_body();
                    });
}

// Finds the caller, and refuses one whose role is too low.
Refused Connection::identify() {
  const Role least = head_.match.route->least;
  if (least == Role::kAnonymous) {
    caller_ = kStranger;
    return {};
  }
  const std::string authorization = authorization_of(parser_->get());
  caller_ = context_.core.access.identify({authorization, subject_, peer_, network_, number_});
  Refused refused = check_role(caller_, least);
  if (refused || least == Role::kUser || context_.options.operators) return refused;
  return refuse(EndReason::kForbidden,
                "this path is for operators: use the address of --admin or --metrics");
}

// The body is not read, and the connection is closed.
void Connection::refuse_body(Refusal refusal) {
  head_.keep_alive = false;
  const HttpRequest refused{.keep_alive = false, .error_body = head_.match.error_body};
  respond(refusal_response(refused, *context_.core.report(std::move(refusal))));
}

// False if the head announces a longer body.
bool Connection::limit_body() {
  most_body_ = context_.options.max_body_bytes;
  if (head_.match.route->body == Route::Body::kState && !context_.core.availability()) {
    int64_t state = 0;  // the model is not known yet
    for (const auto& model : context_.core.models()) {
      state = std::max(state, model->info.most_written_bytes);
    }
    most_body_ = std::max(most_body_, std::min(state, context_.core.options.max_bytes_under_way));
  }
  const auto most = static_cast<uint64_t>(most_body_);
  parser_->body_limit(most);
  const auto announced = parser_->content_length();
  return !announced || *announced <= most;
}

void Connection::read_body() {
  stream_.expires_after(context_.options.times.body);
  parser_->eager(true);
  body_progressed({});
}

void Connection::body_progressed(const Error& error) {
  if (error) return refuse_unread(error);
  if (!reserve_body()) {
    return refuse_body(refuse(EndReason::kRequestMemory));
  }
  if (parser_->is_done()) return body_arrived();
  http::async_read_some(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](const Error& failed, size_t) { self->body_progressed(failed); });
}

// Bodies that are being read count as requests under way do, by twice the bytes that have arrived
// at most. A body that is the only one always fits.
bool Connection::reserve_body() {
  const size_t size = parser_->get().body().size();
  if (size <= body_reserved_) return true;
  body_reserved_ = std::bit_ceil(size);
  body_share_ = {};
  body_share_ =
      context_.core.message_bytes.take(static_cast<int64_t>(body_reserved_), caller_.share());
  return static_cast<bool>(body_share_);
}

void Connection::body_arrived() {
  const Route& route = *head_.match.route;
  request_.body = std::move(parser_->get().body());
  HttpRequest request = std::exchange(request_, {});
  body_share_ = {};  // an exchange reserves memory for it itself
  body_reserved_ = 0;
  if (route.is_exchange()) return begin_exchange(route, std::move(request));
  respond(std::get<Route::Respond>(route.handler)(request));
}

// All of it but the body. Trailing fields, which follow the body, are not read.
HttpRequest Connection::take_request(const Route& route) {
  const auto& fields = parser_->get();
  HttpRequest request{.caller = caller_,
                      .names = std::move(head_.match.names),
                      .query = std::move(head_.query),
                      .request_id = std::string(field_of(fields, "x-request-id")),
                      .idempotency_key = std::string(field_of(fields, "Idempotency-Key")),
                      .origin = {.operation = operation_of(route),
                                 .traceparent = std::string(field_of(fields, "traceparent")),
                                 .tracestate = all_of(fields, "tracestate")},
                      .session = std::string(field_of(fields, "x-recurve-session")),
                      .timeout_ms = std::string(field_of(fields, "x-recurve-timeout-ms")),
                      .if_none_match = std::string(field_of(fields, "If-None-Match")),
                      .keep_alive = head_.keep_alive,
                      .chunked = head_.chunks,
                      .error_body = head_.match.error_body};
  if (check_name("x-request-id", request.request_id)) request.request_id = make_name("r-");
  return request;
}

void Connection::begin_exchange(const Route& route, HttpRequest request) {
  stream_.expires_never();
  parser_.reset();
  if (buffer_.size() == 0) buffer_.shrink_to_fit();
  answer_ = std::get<Route::Begin>(route.handler)(shared_from_this(), std::move(request));
  ++context_.answers;
  answer_->begin();
  await_silence();
  watch();
}

// Restarted by each write.
void Connection::await_silence() {
  silence_.expires_after(context_.options.times.silence);
  silence_.async_wait([self = shared_from_this()](const Error& error) {
    if (error || self->answer_ == nullptr) return;
    self->answer_->silent();
    self->await_silence();
  });
}

// A request that could not be read to its end. The connection cannot be used any more.
void Connection::refuse_unread(const Error& failed) {
  head_.keep_alive = false;
  const auto refuse = [this](int status, const std::string& message) {
    respond(error_response(head_.match.error_body, status, message));
  };
  if (failed == http::error::header_limit || failed == http::error::buffer_overflow) {
    return refuse(431, fmt::format("the head must have at most {} bytes, and fields between the "
                                   "chunks of a body few",
                                   kMostHeadBytes));
  }
  if (failed == http::error::body_limit) {
    return refuse(413, fmt::format("the body must have at most {} bytes", most_body_));
  }
  const bool read = failed.category() == http::make_error_code(http::error::bad_method).category();
  const bool ended = failed == http::error::end_of_stream || failed == http::error::partial_message;
  if (read && !ended) return refuse(400, "invalid HTTP: " + failed.message());
  closed();
}

// A client that closes its side of the connection is not answered any more: it cannot be told from
// one that disconnects before something is sent.
void Connection::watch() {
  stream_.socket().async_wait(asio::ip::tcp::socket::wait_read,
                              [self = shared_from_this()](const Error& error) {
                                if (error || self->answer_ == nullptr) return;
                                if (self->poll_client()) self->watch();
                              });
}

// Reads bytes of next requests into the buffer until that is full, so that the end of the
// connection is noticed. False: there is nothing more to watch.
bool Connection::poll_client() {
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
    self->out_ = self->finish_head(std::move(bytes));
    if (self->answer_ != nullptr) self->await_silence();
    self->stream_.expires_after(std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(self->context_.core.options.stall_seconds)));
    asio::async_write(self->stream_, asio::buffer(self->out_),
                      [self, answer = std::move(answer), last](const Error& error, size_t) {
                        self->stream_.expires_never();
                        answer->written(!error);
                        if (last) self->finish(answer, !error);
                      });
  });
}

void Connection::answer_done(std::shared_ptr<Exchange> answer) {
  asio::post(context_.io, [self = shared_from_this(), answer = std::move(answer)] {
    self->finish(answer, false);
  });
}

void Connection::finish(const std::shared_ptr<Exchange>& answer, bool ok) {
  answer_.reset();
  silence_.cancel();
  answer->done();
  --context_.answers;
  context_.end_if_idle();
  if (!ok || !head_.keep_alive || closed_ || context_.closing) return closed();
  stream_.socket().cancel();  // watch()
  await_request();
}

void Connection::cut() {
  asio::post(context_.io, [self = shared_from_this()] { self->close(); });
}

void Connection::respond(std::string bytes) {
  out_ = finish_head(std::move(bytes));
  stream_.expires_after(context_.options.times.head);
  asio::async_write(
      stream_, asio::buffer(out_), [self = shared_from_this()](const Error& error, size_t) {
        if (error) return self->closed();
        if (self->head_.keep_alive) return self->await_request();
        Error ignored;
        self->stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
        self->stream_.expires_after(self->context_.options.times.linger);
        self->buffer_.clear();
        self->linger();
      });
}

// Adds the headers that every response to this request has to its first bytes. The response to a
// HEAD ends with its head.
std::string Connection::finish_head(std::string bytes) {
  if (head_.bodiless) {
    bytes.resize(response_begun_ ? 0 : std::min(bytes.size(), bytes.find("\r\n\r\n") + 4));
  }
  if (!std::exchange(response_begun_, true)) bytes.insert(bytes.find("\r\n") + 2, head_.headers);
  return bytes;
}

// Closing a connection with unread bytes discards what was written: a client that is still sending
// would not see why it is refused.
void Connection::linger() {
  stream_.async_read_some(buffer_.prepare(kFirstBytes),
                          [self = shared_from_this()](const Error& error, size_t) {
                            error ? self->closed() : self->linger();
                          });
}

void Connection::close() {
  closed_ = true;
  if (answer_ != nullptr) answer_->client_left();
  if (answer_ == nullptr) return closed();
  stream_.socket().cancel();
}

void Connection::closed() {
  closed_ = true;
  Error ignored;
  stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  stream_.close();
  context_.connections.erase(shared_from_this());
}

}  // namespace recurve
