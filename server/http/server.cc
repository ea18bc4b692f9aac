#include "server/http/server.h"

#include <boost/asio/post.hpp>
#include <thread>

#include "server/http/connection.h"
#include "server/net/listener.h"

namespace recurve {

namespace asio = boost::asio;
using asio::ip::tcp;

struct HttpServer::Impl {
  Impl(HttpOptions options, std::vector<HttpApi> apis, ServerCore& core)
      : context(std::move(options), std::move(apis), core),
        listener(context.options.listen, context.options.listen_flag) {}

  void take(int descriptor, const Peer& peer);
  void close_all();

  HttpContext context;
  Metrics uncounted;
  Listener listener;
  std::thread thread;
};

// On the listener's thread, or the handshaker's.
void HttpServer::Impl::take(int descriptor, const Peer& from) {
  const tcp protocol = from.address.find(':') == std::string::npos ? tcp::v4() : tcp::v6();
  asio::post(context.io, [this, descriptor, protocol, peer = from] {
    tcp::socket socket(context.io, protocol, descriptor);
    if (context.closing) return;
    boost::system::error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    std::make_shared<Connection>(context, std::move(socket), peer)->start();
  });
}

void HttpServer::Impl::close_all() {
  context.closing = true;
  const auto connections = context.connections;  // a connection that closes at once is erased
  for (const auto& connection : connections) connection->close();
  context.end_if_idle();
}

HttpServer::HttpServer(HttpOptions options, std::vector<HttpApi> apis, ServerCore& core,
                       Connections& connections)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(apis), core)) {
  impl_->thread = std::thread([impl = impl_.get()] { impl->context.io.run(); });
  Metrics& metrics = impl_->context.options.counted ? core.metrics : impl_->uncounted;
  impl_->listener.start(
      connections, metrics,
      [impl = impl_.get()](int descriptor, const Peer& peer) { impl->take(descriptor, peer); },
      {impl_->context.options.tls, TlsProtocol::kHttp1});
}

HttpServer::~HttpServer() { shutdown(); }

int HttpServer::port() const { return impl_->listener.port(); }

void HttpServer::shutdown() {
  if (!impl_->thread.joinable()) return;
  impl_->listener.stop();
  asio::post(impl_->context.io, [impl = impl_.get()] { impl->close_all(); });
  impl_->thread.join();
  // Everything was written; the calls only delete themselves.
  impl_->context.core.wait_for_cancelled_calls();
}

}  // namespace recurve
