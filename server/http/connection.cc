#include "server/http/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>

#include "server/http/body_fields.h"
#include "server/http/host_rule.h"
#include "server/http/openai/errors.h"
#include "server/http/response.h"

namespace recurve {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

constexpr uint32_t kMostHeadBytes = 16 << 10;
// For the head of a first request, and all of a body.
constexpr auto kHeadTime = std::chrono::seconds(10), kBodyTime = std::chrono::seconds(60);
// For a client to read a refusal, and to close.
constexpr auto kLingerTime = std::chrono::seconds(2);
// For a next request to come.
constexpr auto kIdleTime = std::chrono::seconds(75);

std::string_view to_view(boost::beast::string_view text) { return {text.data(), text.size()}; }

std::string error(int status, const std::string& message, bool keep_alive,
                  const std::string& headers = "") {
  return response({.status = status,
                   .body = dump(error_object(status, message)),
                   .keep_alive = keep_alive,
                   .headers = headers});
}

std::string_view path_of(std::string_view target) { return target.substr(0, target.find('?')); }

}  // namespace

Connection::Connection(HttpContext& context, asio::ip::tcp::socket socket, std::string peer)
    : context_(context), stream_(std::move(socket)), peer_(std::move(peer)) {}

void Connection::start() {
  context_.connections.insert(shared_from_this());
  stream_.expires_after(kHeadTime);
  read_head();
}

void Connection::read_head() {
  parser_.emplace();
  parser_->header_limit(kMostHeadBytes);
  parser_->body_limit(static_cast<uint64_t>(context_.options.max_body_bytes));
  http::async_read_header(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](const Error& error, size_t) { self->head_came(error); });
}

std::string_view Connection::header(boost::beast::string_view name) const {
  const auto& head = parser_->get();
  const auto found = head.find(name);
  return found == head.end() ? std::string_view() : to_view(found->value());
}

void Connection::head_came(const Error& error) {
  if (error) return refuse_unread(error);
  keep_alive_ = parser_->keep_alive() && !context_.closing;
  if (const auto refusal = problem()) {
    keep_alive_ = false;  // its body is not read
    return respond(*refusal);
  }
  if (!boost::beast::iequals(parser_->get()[http::field::expect], "100-continue")) {
    return read_body();
  }
  out_ = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(stream_, asio::buffer(out_),
                    [self = shared_from_this()](const Error& failed, size_t) {
                      failed ? self->gone() : self->read_body();
                    });
}

// What is wrong with a request as its head has it: a response.
std::optional<std::string> Connection::problem() {
  const auto& head = parser_->get();
  if (head.version() != 11) return error(505, "only HTTP/1.1 is spoken here", false);
  const std::string origin =
      origin_problem(header("Host"), header("Origin"), context_.options.origins);
  if (!origin.empty()) return error(403, origin, false);
  const std::string_view target = to_view(head.target());
  const std::string_view path = path_of(target);
  match_ = find_route(head.method(), path);
  if (match_.allow.empty()) return error(404, fmt::format("there is nothing at {}", path), false);
  if (match_.route == nullptr) {
    return error(405, fmt::format("{} takes {}", path, match_.allow), false,
                 fmt::format("Allow: {}\r\n", match_.allow));
  }
  const bool takes_body = match_.route->body == Route::Body::kJson ||
                          (match_.route->body == Route::Body::kOptional && has_body());
  if (takes_body && !may_be_json()) {
    return error(415, "the body must be JSON, with Content-Type: application/json", false);
  }
  return {};
}

bool Connection::has_body() const {
  return parser_->chunked() || parser_->content_length().value_or(0) > 0;
}

// A page of elsewhere can post any type but JSON without asking the server first. What no page has
// sent, which says where it comes from, may have the type that `curl -d` gives everything.
bool Connection::may_be_json() const {
  const std::string_view type = header("Content-Type");
  if (type.substr(0, type.find(';')) == "application/json") return true;
  const bool page =
      !header("Origin").empty() || !header("Referer").empty() || !header("Sec-Fetch-Site").empty();
  return type == "application/x-www-form-urlencoded" && !page;
}

void Connection::read_body() {
  stream_.expires_after(kBodyTime);
  http::async_read(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](const Error& error, size_t) { self->body_came(error); });
}

void Connection::body_came(const Error& error) {
  if (error) return refuse_unread(error);
  const Route& route = *match_.route;
  HttpRequest request = take_request();
  if (route.respond != nullptr) return respond(route.respond(context_, request, keep_alive_));
  stream_.expires_never();
  answer_ = route.exchange(context_, shared_from_this(), std::move(request));
  ++context_.answers;
  answer_->begin();
  watch();
}

HttpRequest Connection::take_request() {
  const std::string_view target = to_view(parser_->get().target());
  const size_t query = path_of(target).size() + 1;
  HttpRequest request{.names = std::move(match_.names),
                      .query = std::string(query < target.size() ? target.substr(query) : ""),
                      .request_id = std::string(header("x-request-id")),
                      .session = std::string(header("x-recurve-session")),
                      .body = std::move(parser_->get().body())};
  if (request.request_id.empty()) request.request_id = make_name("r-");
  return request;
}

// A request that could not be read to its end: the connection is of no use any more.
void Connection::refuse_unread(const Error& failed) {
  keep_alive_ = false;
  if (failed == http::error::header_limit) {
    return respond(
        error(431, fmt::format("the head must have at most {} bytes", kMostHeadBytes), false));
  }
  if (failed == http::error::body_limit) {
    return respond(error(
        413, fmt::format("the body must have at most {} bytes", context_.options.max_body_bytes),
        false));
  }
  const bool read = failed.category() == http::make_error_code(http::error::bad_method).category();
  const bool ended = failed == http::error::end_of_stream || failed == http::error::partial_message;
  if (read && !ended) return respond(error(400, "this is no HTTP: " + failed.message(), false));
  gone();
}

// A client that closes its side, as one that goes away does, is not answered any more. Once the
// beginning of a next request has come, that is not seen before it is read.
void Connection::watch() {
  stream_.socket().async_wait(
      asio::ip::tcp::socket::wait_read, [self = shared_from_this()](const Error& error) {
        if (error || self->answer_ == nullptr) return;
        char byte = 0;
        const ssize_t got =
            recv(self->stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (got > 0) return;
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return self->watch();
        self->answer_->client_left();
      });
}

void Connection::write(std::shared_ptr<Exchange> answer, std::string bytes, bool last) {
  asio::post(context_.io, [self = shared_from_this(), answer = std::move(answer),
                           bytes = std::move(bytes), last]() mutable {
    self->out_ = std::move(bytes);
    self->stream_.expires_after(std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(self->context_.serving.options.stall_seconds)));
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
  answer->done();
  --context_.answers;
  context_.end_if_idle();
  if (!ok || !keep_alive_ || closed_ || context_.closing) return gone();
  stream_.socket().cancel();  // watch()
  stream_.expires_after(kIdleTime);
  read_head();
}

void Connection::cut() {
  asio::post(context_.io, [self = shared_from_this()] { self->close(); });
}

void Connection::respond(std::string bytes) {
  out_ = std::move(bytes);
  stream_.expires_after(kHeadTime);
  asio::async_write(
      stream_, asio::buffer(out_), [self = shared_from_this()](const Error& error, size_t) {
        if (error) return self->gone();
        if (!self->keep_alive_) {
          Error ignored;
          self->stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
          self->stream_.expires_after(kLingerTime);
          return self->linger();
        }
        self->stream_.expires_after(kIdleTime);
        self->read_head();
      });
}

// A connection that is closed with something unread takes back what was written: a client that is
// still sending would not see why it is refused.
void Connection::linger() {
  stream_.async_read_some(asio::buffer(unwanted_),
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
