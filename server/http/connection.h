#pragma once
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>  // Boost 1.74's Asio leaves it out

#include "server/http/exchange.h"
#include "server/http/request_head.h"
#include "server/http/routes.h"
#include "server/http/server.h"
#include "server/request/byte_budget.h"
#include "server/serving/server_core.h"

namespace recurve {

class Connection;

// Shared by all connections. All of it belongs to the one thread that runs `io`.
struct HttpContext {
  HttpContext(HttpOptions options_, std::vector<HttpApi> apis_, ServerCore& core_)
      : options(std::move(options_)), apis(std::move(apis_)), core(core_) {}

  const HttpOptions options;
  const std::vector<HttpApi> apis;
  ServerCore& core;
  boost::asio::io_context io{1};
  std::set<std::shared_ptr<Connection>> connections;
  int answers = 0;  // under way, also those whose client has gone
  bool closing = false;
  // `io` runs until this is reset and nothing is under way.
  std::optional<boost::asio::executor_work_guard<boost::asio::io_context::executor_type>> work{
      io.get_executor()};

  void end_if_idle() {
    if (closing && answers == 0) work.reset();
  }
};

// One client: its requests one after another, each answered before the next is read. All methods
// are for the context's thread, unless they are for any thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpContext& context, boost::asio::ip::tcp::socket socket, const Peer& peer);

  void start();
  // Cancels the answer under way. The connection is closed once that has ended.
  void close();

  // For the answer under way, from any thread.
  const std::string& peer() const { return peer_; }
  void write(std::shared_ptr<Exchange> answer, std::string bytes, bool last);
  void answer_done(std::shared_ptr<Exchange> answer);  // nothing more will be written
  void cut();

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  using Error = boost::beast::error_code;

  void await_request();
  void read_head();
  void head_arrived(const Error& error);
  Refused identify();
  void read_body();
  bool limit_body();
  void body_progressed(const Error& error);
  bool reserve_body();
  void body_arrived();
  void refuse_unread(const Error& error);
  void refuse_body(Refusal refusal);
  HttpRequest take_request(const Route& route);
  void begin_exchange(const Route& route, HttpRequest request);
  void await_silence();
  void watch();
  bool poll_client();
  void finish(const std::shared_ptr<Exchange>& answer, bool ok);
  void respond(std::string bytes);
  std::string finish_head(std::string bytes);
  void linger();
  void closed();

  HttpContext& context_;
  boost::beast::tcp_stream stream_;
  boost::asio::steady_timer silence_;  // while there is an answer
  const std::string peer_, subject_;   // see Peer
  const std::string network_;          // empty: this machine
  const uint32_t number_;              // of the connection
  const Clock::time_point began_ = Clock::now();
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;  // of the request that is being read
  RequestHead head_;              // of it, or of the one that is being answered
  Identity caller_ = kStranger;
  HttpRequest request_;           // without its body, while that is read
  ByteBudget::Share body_share_;  // for the bytes of the body that have arrived
  size_t body_reserved_ = 0;      // bytes
  int64_t most_body_ = 0;         // bytes, of this request
  bool response_begun_ = false;
  std::string out_;  // being written
  bool closed_ = false;
  std::shared_ptr<Exchange> answer_;  // under way
};

}  // namespace recurve
